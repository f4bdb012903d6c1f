"""`headworks demo`: a chat service and a tenant that floods the same engine, straight and then through headworks.

The engine is the fake one: a model of a small vLLM behind vLLM's own surface, in real time and in a process of its own.
Nothing is staged: both halves offer the same calls (`tools/two_tenants.py`), headworks runs from a file with two tenants and
their classes and nothing else, and the verb says 1 when the second half is not the better one.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import httpx
import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headworks.tools.load_wire import REFUSED
from headworks.tools.two_tenants import Half, Moment, Scene, offer

ENGINE = ("--max-num-seqs", "16", "--max-model-len", "4096", "--speed", "0.5", "--stream-interval", "4")
CHAT, FLOOD = "chat", "batchco"
KEY_VARIABLES = {CHAT: "HEADWORKS_DEMO_CHAT_KEY", FLOOD: "HEADWORKS_DEMO_BATCHCO_KEY"}
FLOOD_AT_S = 4.0
ASK_S_MAX = 5.0
TROUBLE_CHARACTERS_MAX = 2_000

Say = Callable[[str], None]


@dataclass(slots=True)
class Front:
    """A gateway of our own: where it is, and what a tenant's call needs."""

    url: str
    admin: str
    keys: dict[str, str]


def demo(
    seconds: Annotated[float, typer.Option(min=6.0, max=25.0, help="How long the chat goes on in each half")] = 18.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print both halves as JSON.")] = False,
) -> None:
    """Let a tenant flood an engine that a chat service uses, without and with headworks, and compare what each got.

    Needs nothing but this machine. Exit: 0 when it was better with headworks, 1 when it was not, 2 when it could not run.
    """
    say: Say = (lambda line: None) if as_json else _say
    scene = Scene(chat_s=seconds, flood_at_s=min(FLOOD_AT_S, seconds / 3))
    for line in _opening(scene):
        say(line)
    with _engine() as engine:
        say(f"\nBefore: both straight to the engine at {engine}, which takes whatever it is sent.")
        before = asyncio.run(offer(engine, engine, scene, (None, None), _each_second(say)))
    with _engine() as engine, _gateway(engine) as front:
        say(f"\nAfter: the same through headworks at {front.url}: {CHAT} is interactive, {FLOOD} is bulk.")
        keys = front.keys[CHAT], front.keys[FLOOD]
        after = asyncio.run(offer(front.url, engine, scene, keys, _each_second(say), front.admin))
        why = [] if as_json else list(_one_of_them(front))
    better = is_better(before, after)
    if as_json:
        halves = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
        typer.echo(json.dumps({"holds": better, **halves}, indent=1))
    else:
        Console(highlight=False).print(_table(before, after))
        for line in [_verdict(before, after, better), *why]:
            say(line)
    raise typer.Exit(0 if better else 1)


def is_better(before: Half, after: Half) -> bool:
    """The chat got more good answers, its first tokens came sooner, and no document was left without its answer."""
    p95_s = before.chat.ttft.p95_s, after.chat.ttft.p95_s
    sooner = p95_s[1] is not None and (p95_s[0] is None or p95_s[1] < p95_s[0])
    return after.chat.good > before.chat.good and sooner and after.flood_took_s is not None


# the story


def _opening(scene: Scene) -> Iterator[str]:
    yield "A fake engine that runs 16 requests at once, and two tenants of it:"
    yield (
        f"  {CHAT:8} asks a short question {scene.chat_per_s:g} times a second, wants the first token within"
        f" {scene.chat_promise_s:g} s and hangs up after {scene.chat_patience_s:g} s"
    )
    yield (
        f"  {FLOOD:8} sends some {scene.flood_calls} long documents within a second, {scene.flood_at_s:g} s after the start;"
        " it can wait"
    )


def _each_second(say: Say) -> Callable[[Moment], None]:
    """A line a second while it happens, and a word when the flood begins."""
    told = False

    def show(now: Moment) -> None:
        nonlocal told
        if not told and now.flood.sent:
            told = True
            say(f"         {FLOOD} sends its documents")
        say(_line(now))

    return show


def _line(now: Moment) -> str:
    chat, flood = now.chat, now.flood
    open_calls = flood.sent - flood.complete - flood.refused - flood.other
    engine = "" if now.engine is None else f"engine {now.engine.running:2.0f} run {now.engine.waiting:3.0f} wait"
    here = "" if now.queued_requests is None else f"   headworks {now.queued_requests:3d} wait"
    return (
        f"  {now.elapsed_s:3.0f} s   {CHAT} {chat.sent:3d} asked {chat.complete:3d} answered {chat.refused:2d} refused"
        f" {chat.other:2d} gave up   {FLOOD} {flood.complete:2d} answered {open_calls:2d} open   {engine}{here}"
    )


def _one_of_them(front: Front) -> Iterator[str]:
    """What headworks answers a tenant that asks about one of its requests: a refused one, else one that had to wait."""
    decided = httpx.get(f"{front.admin}/admin/snapshot", timeout=ASK_S_MAX).json()["decisions"]
    for outcome in ("refuse", "admit"):
        for decision in decided:
            if decision["outcome"] == outcome and decision["tenant"] in front.keys and decision["waited_s"] >= 0.1:
                yield from _explained(front, decision["tenant"], decision["id"])
                return


def _explained(front: Front, tenant: str, name: str) -> Iterator[str]:
    path = f"/v1/headworks/explain/{name}"
    answer = httpx.get(front.url + path, headers={"Authorization": f"Bearer {front.keys[tenant]}"}, timeout=ASK_S_MAX)
    yield f"\nAnd what headworks says when {tenant} asks about one of its requests (GET {path}):"
    yield from (f"  {line}" for line in answer.json().get("story", ()))


# the table


def _table(before: Half, after: Half) -> Table:
    table = Table("", "before", "after", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, value in ROWS:
        table.add_row(label, value(before), value(after))
    return table


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _gave_up(half: Half) -> int:
    return half.chat.offered - half.chat.good - half.chat.ends.get(REFUSED, 0)


ROWS: tuple[tuple[str, Callable[[Half], str]], ...] = (
    (f"{CHAT}: good answers", lambda half: f"{half.chat.good} of {half.chat.offered}"),
    ("  first token, p50", lambda half: _seconds(half.chat.ttft.p50_s)),
    ("  first token, p95", lambda half: _seconds(half.chat.ttft.p95_s)),
    ("  too late, or hung up", lambda half: str(_gave_up(half))),
    ("  refused", lambda half: str(half.chat.ends.get(REFUSED, 0))),
    (f"{FLOOD}: answered", lambda half: f"{half.flood.good} of {half.flood.offered}"),
    ("  the last one after", lambda half: _seconds(half.flood_took_s)),
    ("waiting inside the engine, mean", lambda half: f"{half.engine_waiting_requests_mean:.1f}"),
    ("  at most", lambda half: f"{half.engine_waiting_requests_max:.0f}"),
    ("tokens generated for nobody", lambda half: f"{half.wasted_ratio:.0%}"),
)


def _verdict(before: Half, after: Half, better: bool) -> str:
    said = (
        f"{CHAT} got {before.chat.good} good answers of {before.chat.offered} without headworks"
        f" and {after.chat.good} with it; {FLOOD} got {after.flood.good} of {after.flood.offered}."
    )
    return said if better else said + " It was not better: was this machine busy with something else?"


# the two processes


@contextmanager
def _engine() -> Iterator[str]:
    with _process(sys.executable, "-P", "-m", "headworks.testing.fake_engine", *ENGINE) as lines:
        yield next(lines).removeprefix("listening on ").strip()


@contextmanager
def _gateway(engine: str) -> Iterator[Front]:
    """`headworks serve` from a file, ready when it has said what the engine holds."""
    keys = {tenant: secrets.token_urlsafe(32) for tenant in KEY_VARIABLES}
    environment = {KEY_VARIABLES[tenant]: key for tenant, key in keys.items()}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "headworks.yaml"
        file.write_text(json.dumps(_configuration(engine, directory)))  # JSON is YAML
        command = sys.executable, "-P", "-m", "headworks.cli.main", "serve", "--config", str(file), "--json"
        with _process(*command, **environment) as lines:
            said = json.loads(next(lines))
            assert "ready" in json.loads(next(lines)), "it says so once the engine has answered"
            yield Front(str(said["listening"]).removesuffix("/v1"), str(said["admin"]), keys)


def _configuration(engine: str, directory: str) -> dict[str, Any]:
    return {
        "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_s": 1},
        "ledger": {"url": "memory:"},
        "log": {"decisions": str(Path(directory) / "decisions")},
        "pools": {"demo": {"replicas": [{"url": engine, "engine": "vllm"}]}},
        "tenants": {
            CHAT: {"keys": [f"env:{KEY_VARIABLES[CHAT]}"], "class": "interactive"},
            FLOOD: {"keys": [f"env:{KEY_VARIABLES[FLOOD]}"], "class": "bulk"},
        },
    }


@contextmanager
def _process(*command: str, **environment: str) -> Iterator[Iterator[str]]:
    """A process of our own and its lines; ended with the block, by the same signal as an operator would send."""
    around = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    with tempfile.TemporaryFile("w+") as trouble:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=trouble, text=True, env=around)  # noqa: S603
        assert child.stdout is not None
        try:
            yield _lines(child, trouble)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()


def _lines(child: subprocess.Popen[str], trouble: IO[str]) -> Iterator[str]:
    """What it says, or an error with its last words when it says nothing more."""
    assert child.stdout is not None
    yield from child.stdout
    trouble.seek(0)
    raise RuntimeError(f"{child.args!r} said nothing more: {trouble.read()[-TROUBLE_CHARACTERS_MAX:]}")


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
