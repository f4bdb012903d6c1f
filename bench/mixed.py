"""Conversations beside a flood of documents on one real engine: alone, straight, behind its own valve, behind headworks.

Chat is Poisson traffic of 200 prompt and 64 output tokens, at `--chat-ratio` of what the engine carries of it alone. Five
seconds after it begins 50 documents of 3,000 prompt and 512 output tokens arrive within one second and wait up to 300 s
for their answer: they are a batch job that needs every one of them, so who is refused asks again by the stock client's rules
until 300 s have passed. Chat clients leave after 2 s without a first token and do not come back; their first-token SLO is 1 s.

- *alone*: the same chat without any document, straight to the engine: what "undisturbed" means here;
- *direct*: straight to the engine;
- *valve*: the engine started with --max-num-queued-reqs at the value (of a few) that serves chat best;
- *headworks*: two tenants with a key each, `chat` (interactive) and `docs` (bulk), wfq.

A round is all four in turn; figures are medians over the rounds. While chat is offered (`--seconds`): *chat good* is good
answers of chat a second; *good work* is prompt and output tokens of all good answers, spread over their time, a second. A
document is good when its whole answer came within 300 s. *Bulk share* is the smallest share that documents had of the
work in any 10 s window in which a document was waiting from beginning to end, work being counted when it was done: a
prompt at its first token, output evenly from there to the end.

    python bench/mixed.py --engine-command 'run-vllm {port} --max-num-seqs 16 --max-num-batched-tokens 512' --out docs

HEADWORKS_BENCH_ENGINE stands in for the option. Exit 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

import servers
from headworks.tools.load import Call, Plan, Run, run
from headworks.tools.load_figures import end_of, figures
from headworks.tools.load_wire import COMPLETE, REFUSED, Attempt
from mixed_page import page, picture
from real_engine import saturation_per_s, say, told

CHAT, DOCUMENT = (200, 64), (3_000, 512)
DOCUMENTS, DOCUMENTS_AT_S = 50, 5.0
DOCUMENT_LIMIT_S = 300.0
DOCUMENT_RETRIES_MAX = 1_000
"""A batch job wants its answer: refused, it asks again as the stock client does, until the limit."""
PATIENCE_S, SLO_S = 2.0, 1.0
GOOD_RATIO_AT_SATURATION = 0.99
VALVES = (18, 22, 32)
WINDOW_S = 10.0
FLOOR_RATIO, FLOOR_MET_RATIO = 0.05, 0.95
WAYS = ("alone", "direct", "valve", "headworks")
REPOSITORY = Path(__file__).resolve().parent.parent
KEYS = {"HEADWORKS_CHAT_KEY": f"hw-bench-{secrets.token_hex(16)}", "HEADWORKS_DOCS_KEY": f"hw-bench-{secrets.token_hex(16)}"}

CONFIG = """\
server: {listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}
ledger: {url: "memory:"}
log: {decisions: "{folder}/decisions/"}
classes:
  interactive:
    share: 10
    floor_ratio: 0.75
    slo: {ttft_s: 1.0, tpot_s: 1.0, e2e_s: 60}
    queue: {wait_s_max: 1.0}
  bulk:
    share: 2.6
    floor_ratio: 0.05
    queue: {wait_s_max: 290, requests_max: 5000}
    timeouts: {client_s: 1800, gateway_s: 1790, first_byte_s: 600, idle_s: 60}
  batch: {share: 0.1, floor_ratio: 0.0}
tenants:
  chat: {keys: ["env:HEADWORKS_CHAT_KEY"], class: interactive}
  docs: {keys: ["env:HEADWORKS_DOCS_KEY"], class: bulk}
pools:
  engine:
    models: [tiny]
    replicas: [{url: "{engine}", engine: vllm, exclusive: true}]
    active_requests_max: 17
    discipline: wfq
    prefill: {heavy_tokens: 2000, heavy_max: 1}
"""


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.measure()
    return told(bench.report(), "mixed", options.out, page, picture, options.json)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="chat beside a flood of documents, four ways")
    parser.add_argument("--engine-command", default=os.environ.get("HEADWORKS_BENCH_ENGINE"))
    parser.add_argument("--chat-rate", type=float, help="chat requests a second, instead of measuring saturation")
    parser.add_argument("--chat-ratio", type=float, default=0.9, help="of the measured saturation of chat alone")
    parser.add_argument("--valve", type=int, help="value of --max-num-queued-reqs, instead of trying a few")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--config", type=Path, help="headworks.yaml with {engine}, {port}, {admin}, {folder}")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / ".build" / "mixed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round of 30 s")
    options = parser.parse_args()
    if not options.engine_command:
        parser.error("give --engine-command or HEADWORKS_BENCH_ENGINE")
    options.ways = tuple(options.ways.split(","))
    if options.quick:
        options.rounds, options.seconds = 1, 30.0
    return options


@dataclass(slots=True)
class Seen:
    """One way in one round."""

    way: str
    round: int
    chat_ttft_p50_s: float | None
    chat_ttft_p95_s: float | None
    chat_ttft_p99_s: float | None
    chat_good_per_s: float
    chat_ends: dict[str, int]
    good_tokens_per_s: float
    documents_ends: dict[str, int]
    documents_last_answer_s: float
    """Until the last document had its answer, whatever it was; counted from its arrival, the longest of all."""
    bulk_share_min: float | None
    waiting_requests_mean: float | None


class Bench:
    """The whole experiment, in the order of `measure`."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._seen: list[Seen] = []
        self._tries: list[dict[str, Any]] = []
        self.chat_rate_per_s = options.chat_rate or 0.0
        self.saturation_per_s: float | None = None
        self.valve = options.valve or 0
        self._chat_trace, self._documents_trace = folder / "chat.csv", folder / "documents.csv"
        write_trace(self._chat_trace, *CHAT)
        write_trace(self._documents_trace, *DOCUMENT)

    def measure(self) -> None:
        if not self.chat_rate_per_s:
            with self._engine() as url:
                self.saturation_per_s = self._saturation(url)
            self.chat_rate_per_s = self.saturation_per_s * self._options.chat_ratio
        if "valve" in self._options.ways and not self.valve:
            self.valve = self._best_valve()
        for number in range(1, self._options.rounds + 1):
            self._round(number)

    def _saturation(self, url: str) -> float:
        """Of chat alone, to half a request a second."""
        self._chat(url, 2.0, 5.0, seed=7)
        return saturation_per_s(partial(self._carries, url), 2.0, 0.5)

    def _carries(self, url: str, rate_per_s: float) -> bool:
        ratio = figures(self._chat(url, rate_per_s, 15.0, seed=11)).goodput_ratio
        self._tries.append({"saturation_try_per_s": rate_per_s, "good_ratio": ratio})
        say(f"chat alone {rate_per_s:.2f}/s: {ratio:.1%} good")
        return ratio >= GOOD_RATIO_AT_SATURATION

    def _best_valve(self) -> int:
        best, best_per_s = 0, -1.0
        for valve in VALVES:
            with self._engine(valve) as url:
                seen = self._mixed("valve", 0, url, url, {})
            self._tries.append({"valve": valve, **asdict(seen)})
            if seen.chat_good_per_s > best_per_s:
                best, best_per_s = valve, seen.chat_good_per_s
        return best

    def _round(self, number: int) -> None:
        ways = self._options.ways
        with self._engine() as url:
            if "alone" in ways:
                chat = self._chat(url, self.chat_rate_per_s, self._options.seconds, seed=100 * number)
                self._keep(seen_of("alone", number, chat, None))
            if "direct" in ways:
                self._keep(self._mixed("direct", number, url, url, {}))
            if "headworks" in ways:
                config = self._options.config.read_text() if self._options.config else CONFIG
                with servers.gateway(config, url, KEYS) as gateway:
                    self._keep(self._mixed("headworks", number, gateway, url, KEYS))
        if "valve" in ways:
            with self._engine(self.valve) as url:
                self._keep(self._mixed("valve", number, url, url, {}))

    def _keep(self, seen: Seen) -> None:
        self._seen.append(seen)

    def _chat(self, url: str, rate_per_s: float, seconds: float, seed: int) -> Run:
        return uvloop.run(run(self._chat_plan(url, rate_per_s, seconds, seed, engine=url, key="")))

    def _mixed(self, way: str, number: int, url: str, engine: str, keys: dict[str, str]) -> Seen:
        """Chat, and the documents on top of it."""
        seed = 100 * number
        chat_key, docs_key = keys.get("HEADWORKS_CHAT_KEY", ""), keys.get("HEADWORKS_DOCS_KEY", "")
        chat = self._chat_plan(url, self.chat_rate_per_s, self._options.seconds, seed, engine, chat_key)
        documents = Plan(
            url=url,
            trace=str(self._documents_trace),
            rate_per_s=DOCUMENTS,
            seconds=1.0,
            arrivals="trace",
            patience_s=DOCUMENT_LIMIT_S,
            limit_s=DOCUMENT_LIMIT_S,
            retries="sdk",
            retries_max=DOCUMENT_RETRIES_MAX,
            headers=bearer(docs_key),
            seed=seed,
        )

        async def both() -> tuple[Run, Run]:
            offered = asyncio.create_task(run(chat))
            await asyncio.sleep(DOCUMENTS_AT_S)
            flood = await run(documents)
            return await offered, flood

        seen = seen_of(way, number, *uvloop.run(both()))
        say(f"round {number} {way}: chat {seen.chat_good_per_s:.2f}/s good {seen.chat_ends}, documents {seen.documents_ends}")
        return seen

    def _chat_plan(self, url: str, rate_per_s: float, seconds: float, seed: int, engine: str, key: str) -> Plan:
        return Plan(
            url=url,
            trace=str(self._chat_trace),
            rate_per_s=rate_per_s,
            seconds=seconds,
            patience_s=PATIENCE_S,
            ttft_slo_s=SLO_S,
            headers=bearer(key),
            engine_metrics=engine,
            seed=seed,
        )

    @contextlib.contextmanager
    def _engine(self, valve: int = 0) -> Iterator[str]:
        flags = ["--max-num-queued-reqs", str(valve)] if valve else []
        with servers.engine(self._options.engine_command, *flags) as engine:
            yield engine.url

    def report(self) -> dict[str, Any]:
        medians = {way: middle([seen for seen in self._seen if seen.way == way]) for way in self._options.ways}
        return {
            "measured": time.strftime("%Y-%m-%d", time.gmtime()),
            "cores": os.cpu_count(),
            "engine_flags": self._options.engine_command.partition("{port}")[2].strip(),
            "chat_rate_per_s": self.chat_rate_per_s,
            "saturation_per_s": self.saturation_per_s,
            "valve": self.valve,
            "rounds": self._options.rounds,
            "seconds": self._options.seconds,
            "medians": medians,
            "holds": targets(medians),
            "tries": self._tries,
            "runs": [asdict(seen) for seen in self._seen],
        }


def write_trace(path: Path, prompt_tokens: int, output_tokens: int) -> None:
    """A trace in which every request is alike, one in each 1/50 s."""
    rows = [f"{number / DOCUMENTS},{prompt_tokens},{output_tokens}" for number in range(DOCUMENTS)]
    path.write_text("\n".join(["t_s,input_tokens,output_tokens", *rows]) + "\n")


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("Authorization", f"Bearer {key}"),) if key else ()


def seen_of(way: str, number: int, chat: Run, documents: Run | None) -> Seen:
    """The figures of one run."""
    made = figures(chat)
    flood = documents.calls if documents else []
    good = [call.attempts[-1] for call in chat.calls if end_of(call, SLO_S) == "good"]
    good += [call.attempts[-1] for call in flood if call.attempts[-1].end == COMPLETE]
    from_s, to_s = chat.started_s, chat.started_s + chat.plan.seconds
    ends: dict[str, int] = {}
    for call in flood:
        end = call.attempts[-1].end
        ends[end] = ends.get(end, 0) + 1
    return Seen(
        way=way,
        round=number,
        chat_ttft_p50_s=made.ttft.p50_s,
        chat_ttft_p95_s=made.ttft.p95_s,
        chat_ttft_p99_s=made.ttft.p99_s,
        chat_good_per_s=made.goodput_per_s,
        chat_ends=made.ends,
        good_tokens_per_s=sum(work_between(attempt, from_s, to_s) for attempt in good) / (to_s - from_s),
        documents_ends=ends,
        documents_last_answer_s=max((call.attempts[-1].ended_s - call.attempts[0].started_s for call in flood), default=0.0),
        bulk_share_min=bulk_share_min(chat, documents) if documents else None,
        waiting_requests_mean=made.engine.waiting_requests_mean if made.engine else None,
    )


def work_between(attempt: Attempt, from_s: float, to_s: float) -> float:
    """Tokens of it that were worked on in this time: its prompt at its first token, its output evenly from there on."""
    first_s, ended_s = attempt.first_token_s, attempt.ended_s
    if not first_s:
        return 0.0
    prompt = attempt.prompt_tokens if from_s <= first_s < to_s else 0
    within_s = max(0.0, min(to_s, ended_s) - max(from_s, first_s))
    return prompt + attempt.output_tokens * within_s / max(ended_s - first_s, 1e-9)


def bulk_share_min(chat: Run, documents: Run) -> float | None:
    """The smallest share documents had in a window of `WINDOW_S` at whose beginning and end one of them still waited."""
    waiting_until_s = max((call.attempts[-1].first_token_s for call in documents.calls), default=0.0)
    shares: list[float] = []
    from_s = documents.started_s + 1.0
    while from_s + WINDOW_S <= min(waiting_until_s, chat.started_s + chat.plan.seconds):
        to_s = from_s + WINDOW_S
        bulk = sum(work_between(attempt, from_s, to_s) for attempt in attempts_of(documents.calls))
        both = bulk + sum(work_between(attempt, from_s, to_s) for attempt in attempts_of(chat.calls))
        shares.append(bulk / both if both else 0.0)
        from_s += 1.0
    return min(shares) if shares else None


def attempts_of(calls: list[Call]) -> list[Attempt]:
    return [attempt for call in calls for attempt in call.attempts]


def middle(seen: list[Seen]) -> dict[str, Any]:
    """The median of every number; of the documents' ends, those of the round with the most unanswered."""
    if not seen:
        return {}
    names = ("chat_ttft_p50_s", "chat_ttft_p95_s", "chat_ttft_p99_s", "chat_good_per_s", "good_tokens_per_s")
    values: dict[str, Any] = {}
    for name in (*names, "documents_last_answer_s", "bulk_share_min", "waiting_requests_mean"):
        known = [getattr(one, name) for one in seen if getattr(one, name) is not None]
        values[name] = median(known) if known else None
    worst = max(seen, key=lambda one: unanswered(one.documents_ends))
    return {**values, "documents_ends": worst.documents_ends}


def unanswered(ends: dict[str, int]) -> int:
    return sum(count for end, count in ends.items() if end not in (COMPLETE, REFUSED))


def targets(medians: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What must hold for headworks. Empty where it was not measured."""
    ours, valve, alone = (medians.get(way) or {} for way in ("headworks", "valve", "alone"))
    if not ours:
        return {}
    holds = {
        "chat's first token p95 <= 1.0 s": (ours["chat_ttft_p95_s"] or 9e9) <= 1.0,
        "every document has an explicit answer within 300 s": unanswered(ours["documents_ends"]) == 0,
        "documents get 0.95 of their floor in every 10 s": (ours["bulk_share_min"] or 0.0) >= FLOOR_MET_RATIO * FLOOR_RATIO,
    }
    if alone:
        holds["chat's first token p99 <= 1.5 x alone"] = (ours["chat_ttft_p99_s"] or 9e9) <= 1.5 * alone["chat_ttft_p99_s"]
    if valve:
        holds["chat good >= 1.5 x the valve's"] = ours["chat_good_per_s"] >= 1.5 * valve["chat_good_per_s"]
        holds["good work >= 0.95 x the valve's"] = ours["good_tokens_per_s"] >= 0.95 * valve["good_tokens_per_s"]
    return holds


if __name__ == "__main__":
    sys.exit(main())
