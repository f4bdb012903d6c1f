"""Recorded traffic: when requests came and how long they were, and how to offer it again at another rate and size.

A trace is a CSV file, perhaps gzipped, with the columns `t_s, input_tokens, output_tokens`; where it says who asked,
`client`; where it says what prompts begin with, `prefix_N`: ids of the leading blocks of N tokens, as runs (`0 14-27`).
Those that come with the package lie in `data/`, with their licences and attribution. Two things are changed before a trace
is offered:

- *size*: every length is multiplied by one factor, so that the longest request of the trace fits the engine's context
  and the proportions between requests stay;
- *rate*: either Poisson arrivals at the rate asked for, lengths drawn from the trace, or the trace's own arrivals
  from a place drawn at random, with time stretched so that their mean rate over the whole trace is the one asked for.

Everything drawn comes from the seed: same seed, same calls.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from random import Random

NAMES = ("azure2023_conv", "azure2023_code", "mooncake_conversation", "servegen_mlarge_1h", "servegen_r1_1h")
"""The traces that come with the package."""

ROWS_MAX = 1_000_000
PREFIX_BLOCKS_MAX = 100_000
"""Of one request."""
CONTEXT_USED_RATIO = 0.95
"""The longest request fills this much of the context: prompts are made of words and come out a few percent off."""


class TraceError(ValueError):
    """The trace cannot be read. The text says which file, which line and what was expected."""


@dataclass(slots=True)
class Row:
    """One recorded request."""

    t_s: float
    """Seconds from the start."""
    prompt_tokens: int
    output_tokens: int
    client: str = ""
    """Who asked, where the trace says so."""
    prefix: tuple[int, ...] = ()
    """What its prompt begins with, where the trace says so: equal ids are equal blocks of the trace's `prefix_tokens`."""


@dataclass(slots=True)
class Trace:
    """Recorded requests in the order in which they came."""

    name: str
    rows: list[Row]
    prefix_tokens: int = 0
    """Tokens each id of a prefix stands for; 0: the trace does not say what prompts share."""

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate over the whole trace."""
        return len(self.rows) / max(self.rows[-1].t_s - self.rows[0].t_s, 1e-9)

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request together."""
        return max(row.prompt_tokens + row.output_tokens for row in self.rows)


def read(name: str) -> Trace:
    """A trace of the package by its name, else a CSV file by its path."""
    if name in NAMES:
        packed = resources.files("headworks.sim").joinpath("data", f"{name}.csv.gz").read_bytes()
        return _parsed(name, gzip.decompress(packed).decode())
    path = Path(name)
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except OSError as error:
        raise TraceError(f"{name}: {error.strerror or error}; known by name: {', '.join(NAMES)}") from error
    except (EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{name}: {error}") from error
    return _parsed(path.name.split(".")[0], text)


def attribution() -> str:
    """Whose the traces of the package are, their licences, and what was changed in them."""
    return resources.files("headworks.sim").joinpath("data", "ATTRIBUTION.md").read_text(encoding="utf-8")


def summary(trace: Trace) -> dict[str, int | float]:
    """What a trace is like, in a few numbers."""
    prompts = sorted(row.prompt_tokens for row in trace.rows)
    outputs = sorted(row.output_tokens for row in trace.rows)
    middle, high = len(trace.rows) // 2, len(trace.rows) * 99 // 100
    return {
        "requests": len(trace.rows),
        "rate_per_s": round(trace.rate_per_s, 3),
        "clients": len({row.client for row in trace.rows if row.client}),
        "prompt_tokens_p50": prompts[middle],
        "prompt_tokens_p99": prompts[high],
        "output_tokens_p50": outputs[middle],
        "output_tokens_p99": outputs[high],
    }


def scaled(trace: Trace, context_tokens: int) -> Trace:
    """The same trace with all lengths times one factor, at most 1, so that its longest request fits the context.

    Prefixes are left out where that makes anything smaller: blocks of another size would not be the same blocks.
    """
    factor = min(1.0, CONTEXT_USED_RATIO * context_tokens / trace.longest_tokens)
    if factor == 1.0:
        return trace
    rows = [
        Row(row.t_s, max(1, round(row.prompt_tokens * factor)), max(1, round(row.output_tokens * factor)), row.client)
        for row in trace.rows
    ]
    return Trace(trace.name, rows)


def poisson(trace: Trace, *, rate_per_s: float, seconds: float, seed: int) -> list[Row]:
    """Independent arrivals at one mean rate; each with the two lengths of one recorded request."""
    random = Random(f"poisson {seed}")
    offered: list[Row] = []
    t_s = random.expovariate(rate_per_s)
    while t_s < seconds and len(offered) < ROWS_MAX:
        row = random.choice(trace.rows)
        offered.append(replace(row, t_s=t_s))
        t_s += random.expovariate(rate_per_s)
    return offered


def replayed(trace: Trace, *, rate_per_s: float, seconds: float, seed: int) -> list[Row]:
    """The trace's own arrivals from a place drawn by the seed, round the end if need be, time stretched to the rate."""
    stretch = trace.rate_per_s / rate_per_s
    start = Random(f"replayed {seed}").randrange(len(trace.rows))
    span_s = trace.rows[-1].t_s + 1.0 / trace.rate_per_s
    offered: list[Row] = []
    for step in range(ROWS_MAX):
        turn, place = divmod(start + step, len(trace.rows))
        row = trace.rows[place]
        t_s = (row.t_s + turn * span_s - trace.rows[start].t_s) * stretch
        if t_s >= seconds:
            break
        offered.append(replace(row, t_s=t_s))
    return offered


def _parsed(name: str, text: str) -> Trace:
    lines = csv.DictReader(io.StringIO(text))
    missing = {"t_s", "input_tokens", "output_tokens"} - set(lines.fieldnames or ())
    if missing:
        raise TraceError(f"{name}: no column {', '.join(sorted(missing))}; needed: t_s, input_tokens, output_tokens")
    prefix = next((column for column in lines.fieldnames or () if re.fullmatch(r"prefix_[1-9][0-9]{0,5}", column)), "")
    rows: list[Row] = []
    for line in lines:
        try:
            rows.append(_row(line, prefix))
        except (TypeError, ValueError) as error:
            raise TraceError(f"{name}, line {lines.line_num}: {error}") from error
        if len(rows) > ROWS_MAX:
            raise TraceError(f"{name}: more than {ROWS_MAX} rows")
    if len(rows) < 2:
        raise TraceError(f"{name}: fewer than two rows")
    rows.sort(key=lambda row: row.t_s)
    return Trace(name, rows, int(prefix.removeprefix("prefix_") or 0))


def _row(line: dict[str, str], prefix: str) -> Row:
    blocks = _blocks(line[prefix] or "") if prefix else ()
    return Row(float(line["t_s"]), int(line["input_tokens"]), int(line["output_tokens"]), line.get("client") or "", blocks)


def _blocks(runs: str) -> tuple[int, ...]:
    """`0 14-27` → 0, 14, 15, …, 27."""
    blocks: list[int] = []
    for run in runs.split():
        first, _, last = run.partition("-")
        span = range(int(first), int(last or first) + 1)
        if len(blocks) + len(span) > PREFIX_BLOCKS_MAX:
            raise ValueError(f"a prefix of more than {PREFIX_BLOCKS_MAX} blocks")
        blocks += span
    return tuple(blocks)
