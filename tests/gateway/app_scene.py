"""A whole gateway in this process, in front of fake engines on loopback, and what both sides hold at any moment.

Every scene ends with the same claims: nothing is charged, nothing is inside an engine, and every counter of the gate and
of the book equals the sum of its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvloop
from http_port import Answer, Client, until

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.core.types import Reservation
from headworks.gateway.app import App
from headworks.gateway.decisions import paths
from headworks.logs import reading
from headworks.sim.presets import BatchingSettings, StepCost
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
STEP_S = 0.004
SIZES = BatchingSettings(
    cost=StepCost(base_s=STEP_S, prefill_token_s=0.0, attention_s=0.0, sequence_s=0.0, kv_token_s=0.0),
    running_max=8,
    batch_tokens_max=512,
    kv_blocks=513,
    block_tokens=16,
    abort_lag_steps=2,
)
"""8,192 tokens of memory, a token every 4 ms, an abort that comes two steps late."""
ENVIRONMENT = {"ACME_KEY": "acme-key-of-the-test", "BATCHCO_KEY": "batchco-key-of-the-test", "ADMIN": "admin-key-of-the-test"}
UNHURRIED = {"loop_lag_shed_bulk_s": 50, "loop_lag_shed_s": 60, "rss_shed_bytes": 2**40}
"""A machine that runs many tests at once keeps a loop waiting: no scene sheds for that unless it is about it."""
PATIENT = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20}}}
"""A class whose requests wait long enough for a test to look at them."""


def fake_engine(**settings: Any) -> FakeEngine:
    return FakeEngine(replace(FakeSettings(engine=SIZES, context_tokens=2048), **settings))


@dataclass
class Scene:
    app: App
    engines: list[FakeEngine]
    texts: dict[str, Any] = field(default_factory=dict)
    """The configuration as it was given, for a reload."""

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection(*self.app.address[:2]))

    async def ask(self, payload: bytes) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        client.send(payload)
        try:
            return await client.answer()
        finally:
            client.close()

    async def admin(self, path: str, **headers: str) -> httpx.Response:
        host, port = self.app.admin_address[:2]
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
            return await client.get(path, headers=headers)

    def charged(self) -> list[Reservation]:
        return self.app.ledger.charged()

    def held(self, scope: str) -> int:
        """Tokens charged there. For ledgers in this process."""
        return self.app.store.book.held(scope, "tokens")

    def inside(self) -> int:
        """Executions that are physically inside the engines."""
        return sum(len(engine.held()) for engine in self.engines)

    def records(self, name: str) -> list[dict[str, Any]]:
        """What the decision log has about an id, oldest first."""
        assert self.app.log is not None
        return [{"kind": line["kind"], **line["record"]} for line in self.app.log.find(name)]

    def everything(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind in the decision log, oldest first."""
        assert self.app.log is not None
        self.app.log.flush()
        lines = [line for path in paths(self.app.log.directory) for line in reading.lines(path)]
        return [line["record"] for line in lines if line["kind"] == kind]

    def outcome(self, name: str) -> dict[str, Any]:
        """The one outcome of an arrival."""
        (found,) = [record for record in self.records(name) if record["kind"] == "outcome"]
        return found

    async def until(self, condition: Callable[[], bool], within_s: float = 5.0) -> None:
        await until(condition, within_s)

    async def settled(self) -> None:
        """Nothing is held anywhere, and the books are right."""
        await self.until(lambda: not self.app.gate._desk.runs)
        for _ in range(500):  # what others hold on a shared ledger may take its evidence
            if not (await self.app.ledger.book()).charged():
                break
            await asyncio.sleep(0.01)
        assert not (await self.app.ledger.book()).charged()
        assert self.inside() == 0, "something was released while it was inside an engine"
        assert await self.app.ledger.audit() == []
        assert not self.app.gate._desk.claims
        for pool in self.app.policy.pools:
            assert (await self.app.ledger.show())["tokens"][pool] == 0
        snapshot = self.app.snapshot()
        assert {name: pool["tokens"] for name, pool in snapshot["pools"].items()} == dict.fromkeys(snapshot["pools"], 0)

    async def restart(self) -> None:
        """Another process with the same files: this one is stopped in order before."""
        await self.app.stop()
        config = self.text()
        self.app = App(build.policy(config, number=1), build.settings(config, ENVIRONMENT))
        await self.app.start()
        await self.until(lambda: self.app.obstacles() == [])

    def text(self, **changes: Any) -> Any:
        """The configuration with something changed, checked as a file is."""
        given = merged(self.texts, changes)
        return load_bytes(json.dumps(given).encode(), "scene.yaml", ENVIRONMENT).config_or_raise()

    async def reload(self, config: Any) -> None:
        """As SIGHUP does."""
        await self.app.reload(build.policy(config, number=self.app.policy.number + 1), build.settings(config, ENVIRONMENT))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Sections inside sections; anything else is replaced."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


@contextlib.asynccontextmanager
async def scene(
    *engines: FakeEngine,
    pool: dict[str, Any] | None = None,
    replica: dict[str, Any] | None = None,
    settle: bool = True,
    **sections: Any,
) -> AsyncIterator[Scene]:
    """A gateway that is ready for work. `sections` are those of the configuration file, `replica` more keys of each engine."""
    fakes = list(engines) or [fake_engine()]
    with tempfile.TemporaryDirectory() as directory:
        for fake in fakes:
            await fake.start()
        replicas = [{"url": fake.url, "engine": "vllm", **(replica or {})} for fake in fakes]
        given: dict[str, Any] = {
            "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_s": 1, "guard": UNHURRIED},
            "ledger": {"url": "memory:"},
            "log": {"decisions": directory},
            "usage": {"path": f"{directory}/usage"},
            "pools": {
                "llama": merged({"replicas": replicas, "observe": {"every_s": 0.1, "unconfirmed_every_s": 0.02}}, pool or {})
            },
        }
        made = Scene(None, fakes, merged(given, sections))  # type: ignore[arg-type]
        config = made.text()
        made.app = App(build.policy(config, number=1), build.settings(config, ENVIRONMENT))
        await made.app.start()
        try:
            if settle:
                await made.until(lambda: made.app.obstacles() == [])
            yield made
            if settle:
                await made.settled()
        finally:
            await made.app.stop()
            for fake in fakes:
                await fake.stop()
            gc.unfreeze()


def run(loop: str, steps: Coroutine[Any, Any, None], *, within_s: float = 30.0) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(steps, within_s))


# requests


def call(path: str, *fields: str, key: str | None = None, body: dict[str, Any] | bytes) -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: edge", "Content-Type: application/json", *fields]
    if key is not None:
        lines.append(f"Authorization: Bearer {ENVIRONMENT[key]}")
    return ("\r\n".join([*lines, f"Content-Length: {len(payload)}"]) + "\r\n\r\n").encode() + payload


def chat(*fields: str, key: str | None = None, tokens: int = 8, **more: Any) -> bytes:
    """A chat of a few words, answered with exactly so many tokens."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": tokens, **more}
    return call("/v1/chat/completions", *fields, key=key, body=body)


def completion(*fields: str, key: str | None = None, tokens: int = 8, **more: Any) -> bytes:
    body = {"model": "tiny", "prompt": "one two three", "max_tokens": tokens, **more}
    return call("/v1/completions", *fields, key=key, body=body)


def get(path: str, *fields: str, method: str = "GET") -> bytes:
    return ("\r\n".join([f"{method} {path} HTTP/1.1", "Host: edge", *fields]) + "\r\n\r\n").encode()


def events(body: bytes) -> list[Any]:
    """The events of a stream; `[DONE]` as itself."""
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else json.loads(part) for part in parts]


async def first_event(client: Client) -> Answer:
    """The head of a stream and its first chunk; the rest stays to be read."""
    head = (await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    size = int((await asyncio.wait_for(client.reader.readuntil(b"\r\n"), 10)).strip(), 16)
    body = await client.reader.readexactly(size)
    await client.reader.readexactly(2)
    return Answer(int(first.split(" ")[1]), fields, body)


async def rest_of_stream(client: Client) -> tuple[bytes, bool]:
    """What still comes, and whether it ended as it should, with the last chunk."""
    pieces: list[bytes] = []
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
        while True:
            size = int((await asyncio.wait_for(client.reader.readuntil(b"\r\n"), 10)).strip(), 16)
            pieces.append(await client.reader.readexactly(size))
            await client.reader.readexactly(2)
            if size == 0:
                return b"".join(pieces), True
    return b"".join(pieces), False
