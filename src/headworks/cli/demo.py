"""`headworks demo`: the same burst twice, straight to an engine and through headworks, on this machine alone.

The engine is the fake one: a model of a small vLLM behind vLLM's own surface, in real time and in a process of its own.
The burst is recorded conversation lengths with Poisson arrivals at about three times what that engine carries; clients
hang up when no first token has come after two seconds. Nothing is staged: both halves are made by `headworks load`'s
driver, and the verb says 1 when the second is not the better one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headworks.tools import load as driver
from headworks.tools.load_figures import Figures, figures
from headworks.tools.load_wire import REFUSED

ENGINE = ("--max-num-seqs", "16", "--max-model-len", "4096", "--speed", "0.5", "--stream-interval", "4")
RATE_PER_S = 24.0
"""Three times what this engine carries (8 requests a second of this traffic, measured 2026-11-30 with `headworks load`)."""
PATIENCE_S, SLO_S = 2.0, 1.0
START_S_MAX = 20.0


@dataclass(slots=True)
class Half:
    """One of the two runs."""

    name: str
    figures: Figures
    hint_s_mean: float | None
    """What the refused were told to wait, on average; None where nobody was told anything."""


def demo(
    seconds: Annotated[float, typer.Option(min=5.0, max=60.0, help="How long each burst lasts")] = 18.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print both halves as JSON.")] = False,
) -> None:
    """Offer a burst to a small engine, without and with headworks before it, and compare what clients got.

    Needs nothing but this machine. Exit: 0 when it was better with headworks, 1 when it was not, 2 when it could not run.
    """
    say: Callable[[str], None] = (lambda line: None) if as_json else _say
    say(f"A fake engine, 16 sequences at once, and {RATE_PER_S:g} requests a second: three times what it carries.")
    say(f"Clients want their first token within {SLO_S:g} s and hang up after {PATIENCE_S:g} s.\n")
    with _engine() as engine:
        say(f"before: straight to the engine at {engine}")
        before = _half("before", engine, engine, seconds, say)
    with _engine() as engine, _gateway(engine) as gateway:
        say(f"\nafter: through headworks at {gateway}")
        after = _half("after", gateway, engine, seconds, say)
    better = is_better(before.figures, after.figures)
    if as_json:
        typer.echo(json.dumps({"holds": better, "before": _plain(before), "after": _plain(after)}, indent=1))
    else:
        Console(highlight=False).print(_table(before, after))
        _say(_verdict(before.figures, after.figures, better))
    raise typer.Exit(0 if better else 1)


def is_better(before: Figures, after: Figures) -> bool:
    """More good answers, and less of the engine's work for nobody."""
    wasted = (before.wasted_ratio or 0.0), (after.wasted_ratio or 0.0)
    return after.goodput_per_s > before.goodput_per_s and wasted[1] <= wasted[0]


def _half(name: str, url: str, engine: str, seconds: float, say: Callable[[str], None]) -> Half:
    burst = driver.Plan(
        url=url, rate_per_s=RATE_PER_S, seconds=seconds, patience_s=PATIENCE_S, ttft_slo_s=SLO_S, engine_metrics=engine
    )
    made = asyncio.run(driver.run(burst, _each_second(say)))
    hints_s = [
        float(attempt.hints["retry-after-ms"]) / 1000
        for call in made.calls
        for attempt in call.attempts
        if attempt.end == REFUSED and "retry-after-ms" in attempt.hints
    ]
    return Half(name, figures(made), fmean(hints_s) if hints_s else None)


def _each_second(say: Callable[[str], None]) -> driver.OnProgress:
    """A line a second while it happens."""
    shown_s = -1

    def show(now: driver.Progress) -> None:
        nonlocal shown_s
        if int(now.elapsed_s) > shown_s:
            shown_s = int(now.elapsed_s)
            waiting = now.sent - now.complete - now.refused - now.other
            say(
                f"  {shown_s:3d} s   sent {now.sent:4d}   whole {now.complete:4d}   refused {now.refused:4d}"
                f"   gave up {now.other:4d}   in flight {waiting:3d}"
            )

    return show


def _table(before: Half, after: Half) -> Table:
    table = Table("", "before", "after", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, value in ROWS:
        table.add_row(label, value(before), value(after))
    return table


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


ROWS: tuple[tuple[str, Callable[[Half], str]], ...] = (
    ("good answers a second", lambda half: f"{half.figures.goodput_per_s:.1f}"),
    ("  in the second half", lambda half: f"{half.figures.second_half.goodput_per_s:.1f}"),
    ("first token, p95", lambda half: _seconds(half.figures.ttft.p95_s)),
    ("first token, p99", lambda half: _seconds(half.figures.ttft.p99_s)),
    ("tokens generated for nobody", lambda half: _share(half.figures.wasted_ratio)),
    ("refused", lambda half: str(half.figures.ends.get(REFUSED, 0))),
    ("  told to come back after, mean", lambda half: _seconds(half.hint_s_mean)),
    ("hung up or came too late", lambda half: str(_lost(half.figures))),
    (
        "waiting inside the engine, mean",
        lambda half: f"{half.figures.engine.waiting_requests_mean:.1f}" if half.figures.engine else "",
    ),
)


def _waiting(made: Figures) -> str:
    return f"{made.engine.waiting_requests_mean:.1f}" if made.engine else "unknown"


def _lost(made: Figures) -> int:
    return made.offered - made.good - made.ends.get(REFUSED, 0)


def _verdict(before: Figures, after: Figures, better: bool) -> str:
    said = f"{before.good} good answers of {before.offered} without headworks, {after.good} of {after.offered} with it."
    return said if better else said + " It was not better: was this machine busy with something else?"


def _plain(half: Half) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(half.figures), "hint_s_mean": half.hint_s_mean}


# the two processes


@contextmanager
def _engine() -> Iterator[str]:
    with _process(sys.executable, "-m", "headworks.testing.fake_engine", *ENGINE) as lines:
        yield next(lines).removeprefix("listening on ").strip()


@contextmanager
def _gateway(engine: str) -> Iterator[str]:
    """Ready when it has said what the engine holds."""
    ports = "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    with _process(sys.executable, "-m", "headworks.cli.main", "serve", "--upstream", engine, *ports, "--json") as lines:
        address = str(json.loads(next(lines))["listening"])
        assert "ready" in json.loads(next(lines)), "it says so once the engine has answered"
        yield address.removesuffix("/v1")


@contextmanager
def _process(*command: str) -> Iterator[Iterator[str]]:
    """A process of our own and its lines; ended with the block, by the same signal as an operator would send."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})  # noqa: S603
    assert child.stdout is not None
    try:
        yield _lines(child)
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    """What it says, or an error when it says nothing more."""
    assert child.stdout is not None
    started_s = time.monotonic()
    yield from child.stdout
    ended = "and ended" if child.poll() is not None else ""
    raise RuntimeError(f"{child.args!r} said nothing more {ended} after {time.monotonic() - started_s:.1f} s")


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
