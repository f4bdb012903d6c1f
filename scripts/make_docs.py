"""The reference pages of docs/ and the boards, made from tables in the code. Called by `scripts/docs`; a test says when to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import fields_page
import make_boards

from headworks.config.schema import NOT_YET_IN_FORCE
from headworks.core import book_table, life
from headworks.core.reasons import REASONS, Reason
from headworks.gateway.headers_table import READ, WRITTEN
from headworks.gateway.metrics_table import CLOSED, CONFIGURED, METRICS, PREFIX, WITHOUT_SOURCE

ROOT = Path(__file__).resolve().parent.parent
MADE = "<!-- Made by scripts/docs from the code. Do not edit. -->"

WHAT = {
    "picked": "it is next, fits, and the ledger is asked to charge it",
    "gone": "the last client that waited for it left",
    "refused_for_good": "no waiting can help it, or its time is over",
    "claimed": "its key is its own now, so it is looked at like any other",
    "attached": "it repeats a key that has an execution here, and shares that answer",
    "granted": "the ledger charged it: it is sent",
    "opened": "the ledger holds its budget: it was a session, and nothing of it runs",
    "not_now": "the ledger refused it for now: back to its old place",
    "too_late": "the grant came when it could not be on time any more",
    "stop_answered": "the ledger has let go of it",
    "not_sent": "not one byte was written, or the engine said it is busy (E0)",
    "first_byte": "the engine began to answer",
    "ended": "the answer ended in band (E1)",
    "lost": "the connection broke: the engine may go on",
    "silent": "the engine said nothing for too long",
    "time_over": "its time budget, or the gateway's own at a drain, is over",
    "away": "another gateway watches its record now",
    "preempted": "it was stopped to make room for one with less time left",
    "growth_refused": "it reached what is reserved for it, and may have no more",
    "proved": "proof of the stop: E3a, E3b, E4 or an operator",
    "stop_refused": "the ledger does not believe E0, since it saw a byte",
}

RETRY = {
    "ticket": "at its return slot",
    "refill": "when its bucket has refilled",
    "soon": "after 1 to 60 s",
    "never": "no: `x-should-retry: false`",
    "key": "with the same key, after `retry-after-ms`",
    "none": "as the client sees fit",
}


def main() -> int:
    pages = {
        "docs/life-of-a-request.md": life_page(),
        "docs/errors.md": errors_page(),
        "docs/headers.md": headers_page(),
        "docs/metrics.md": metrics_page(),
        "docs/fields.md": page(*fields_page.parts(table)),
        "docs/configuration.md": configuration_page(),
        **{f"dashboards/{name}": text for name, text in make_boards.pages().items()},
    }
    stale = [name for name, text in pages.items() if _now(name) != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is not current: run scripts/docs")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(pages[name])
        print(f"{name} written")
    return 0


def _now(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def page(*parts: str) -> str:
    return "\n\n".join([MADE, *parts]) + "\n"


def life_page() -> str:
    return page(
        "# The life of a request",
        "Two tables. The first is what can happen to a request at the gateway that took it (`core/life.py`). The second is "
        "what the ledger holds of its execution (`core/book_table.py`). Both are data: the code looks a row up and does "
        "what it says, and a move that is not there changes nothing and is reported.",
        "## At the gateway",
        "`claiming` is for a key that a client gave: the ledger is asked whether it is free. There and in `queued` nothing is "
        "charged. From `asked` on its work counts as taken, granted or not; it stops counting in "
        "`ended`, and on every way there the ledger has said so.",
        _drawing(),
        table(["state", "what happened", "state then", "meaning"], _moves()),
        "## In the ledger",
        f"Charged in {_listed(book_table.CHARGED)} and in no other state. What was charged comes back on one edge only, from a "
        "charged state to a terminal one, whole, and by the amounts of the record; only what was held while its prompt "
        "was read comes back at its `start` already. A cell says what the command is answered "
        "and, if it changes, the state then; an empty cell is refused and changes nothing.",
        table(["state", *book_table.VERBS], _cells()),
        "`stop(E0)`: nothing was sent, said by the boot that reserved it, and only while no byte was seen. `stop(E1)`: it "
        "ended in band. `stop(other)`: any other evidence. `TOMBSTONE`: cancelled before the ledger knew of it; a reserve that "
        "comes later is refused. `STOPPED`: a tombstone with testimony that it does not run.",
    )


def _drawing() -> str:
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, what), then in life.MOVES.items():
        moves.setdefault((state, then), []).append(what)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {life.CLAIMING}: key given", f"    [*] --> {life.QUEUED}"]
    lines += [f"    {state} --> {then}: {', '.join(what)}" for (state, then), what in moves.items()]
    return "\n".join([*lines, f"    {life.ENDED} --> [*]", "```"])


def _moves() -> Iterable[Sequence[str]]:
    for (state, what), then in life.MOVES.items():
        yield state, f"`{what}`", then, WHAT[what]


def _cells() -> Iterable[Sequence[str]]:
    for state, verbs in book_table.MOVES.items():
        yield [state or "unknown", *(_cell(verbs.get(verb)) for verb in book_table.VERBS)]


def _cell(move: book_table.Move | None) -> str:
    if move is None:
        return ""
    if move.ends:
        return " / ".join(dict.fromkeys(move.ends.values()))
    return f"{move.outcome} → {move.state}" if move.state else move.outcome


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1]


def errors_page() -> str:
    return page(
        "# Refusals and errors",
        "A refusal has OpenAI's error object with the code, and beside it, under `headworks`, the decision: every check with "
        "what was compared with what, the forecast, and the policy's version. `headworks explain ID` tells the same later.",
        table(["code", "status", "type", "retry", "sentence"], [_reason(reason) for reason in REASONS.values()]),
        "Which of them this version can answer: those whose limits are in force (`headworks check FILE` names the keys that "
        "are accepted and not in force yet).",
        'When a stream has begun, its status cannot change any more: the error comes as one last event, `data: {"error": …}`, '
        "without `[DONE]`, and the connection is broken off, so that no client takes half an answer for a whole one.",
        "The HTTP edge itself also refuses, with `invalid_request`: 400, 405 (method), 408 (a head or body that does not "
        "come), 411, 415 (a coded body), 417, 431 (a head too large) and 505. These carry `x-should-retry: false` and no "
        "decision.",
    )


def _reason(reason: Reason) -> Sequence[str]:
    return f"`{reason.code}`", str(reason.status), f"`{reason.error_type}`", RETRY[reason.retry], reason.sentence


def headers_page() -> str:
    return page(
        "# Headers",
        "## Read",
        table(["header", "on", "meaning"], [(f"`{row.name}`", row.when, row.meaning) for row in READ]),
        "## Written",
        "Of an engine's own headers only `Content-Type`, `Cache-Control` and OpenAI's processing headers pass.",
        table(["header", "on", "meaning"], [(f"`{row.name}`", row.when, row.meaning) for row in WRITTEN]),
    )


def metrics_page() -> str:
    exposed = [metric for metric in METRICS.values() if metric.name not in WITHOUT_SOURCE]
    later = sorted(PREFIX + name for name in WITHOUT_SOURCE)
    return page(
        "# Metrics",
        "Prometheus text on the admin port, `/metrics`. Labels take their values from the configuration "
        f"({_listed(sorted(CONFIGURED))}) or from the closed sets below; anything else is written as `other`, so that no "
        "client can make series. A value nobody knows has no sample: missing is not zero.",
        table(
            ["name", "type", "labels", "meaning"],
            [(f"`{PREFIX}{one.name}`", one.kind, ", ".join(one.labels), one.meaning) for one in exposed],
        ),
        "## Label values",
        table(["label", "values"], [(f"`{name}`", _values(name, values)) for name, values in CLOSED.items()]),
        "## Names that are kept and not exposed yet",
        "Nothing in this version measures them: " + ", ".join(f"`{name}`" for name in later) + ".",
    )


def configuration_page() -> str:
    return page(
        "# Configuration",
        "Every key of `headworks.yaml`, from [config.example.yaml](config.example.yaml). `headworks check FILE` names every "
        "problem of yours with its line, or says what will be enforced; `headworks schema` prints a JSON Schema for editors.",
        f"```yaml\n{(ROOT / 'docs' / 'config.example.yaml').read_text().rstrip()}\n```",
        "## Accepted and without effect in this version",
        table(["key", "what this version does"], [(f"`{entry.key}`", entry.instead) for entry in NOT_YET_IN_FORCE]),
    )


def _values(name: str, values: Sequence[str]) -> str:
    if name == "reason":
        return "empty, or a code of [errors.md](errors.md)"
    return ", ".join(f"`{value}`" for value in values)


if __name__ == "__main__":
    sys.exit(main())
