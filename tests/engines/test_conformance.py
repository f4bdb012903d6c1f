"""The engine suite on fake engines of each kind, and on real ones where the environment names them.

    HEADWORKS_VLLM_URL      a vLLM, best started with `--max-num-seqs 4 --max-num-queued-reqs 6`
    HEADWORKS_LLAMACPP_URL  a llama-server, best with `--metrics --parallel 4 --ctx-size 16384`
    HEADWORKS_SGLANG_URL    an SGLang, best with `--max-running-requests 4 --max-queued-requests 2`

Alone on its machine, for nobody else. With `HEADWORKS_…_PID` (its server's process) it can be hung, and a vLLM is killed at the
end where `HEADWORKS_VLLM_MAY_DIE` is set.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from wire import LOOPS, run_on

from headworks.engines.base import Engine
from headworks.engines.kinds import ENGINES
from headworks.sim.presets import BatchingSettings
from headworks.testing.fake.llamacpp import FakeLlamaServer
from headworks.testing.fake.settings import FakeSettings, Faults, like_the_real_one
from headworks.testing.fake.sglang import FakeSglang
from headworks.testing.fake_engine import FakeEngine
from headworks.testing.suites import engine as suite
from headworks.testing.suites.engine import CASES
from headworks.testing.suites.engine_subject import Subject, Traits, Unsupported

TRAITS = {
    "vllm": Traits(),
    "sglang": Traits(evidence=("E1", "E3b", "E4"), stops_by_name=True),
    "llamacpp": Traits(
        notices_queued=False,
        done_after_error=False,
        refuses=False,
        usage_each=True,
        notices_late=True,
        ends_cut_off=True,
    ),
}
FAKES = {"vllm": FakeEngine, "sglang": FakeSglang, "llamacpp": FakeLlamaServer}
UNSUPPORTED = {
    "vllm": set(),
    "sglang": {"clock_advances_with_work_only"},
    "llamacpp": {"gone_while_queued", "busy_is_recognised_and_starts_nothing"},
}
"""What an engine of this kind cannot be put into."""


def engine_of(kind: str) -> Callable[[str], Engine]:
    return lambda url: ENGINES[kind]("llama/0", url, time.monotonic)


class FakeControl:
    """The fake engine's own methods."""

    def __init__(self, fake: FakeEngine) -> None:
        self._fake = fake

    async def hang(self) -> None:
        self._fake.hang()

    async def go_on(self) -> None:
        self._fake.resume()

    async def restart(self) -> None:
        self._fake.restart(down_s=0.1)

    async def kill_core(self) -> None:
        self._fake.kill_core()

    async def die(self) -> None:
        self._fake.die()

    async def fail_next(self) -> None:
        self._fake.fault("error", after_tokens=5)

    async def is_inside(self, execution: str) -> bool | None:
        return execution in self._fake.held()


def sizes(kind: str) -> BatchingSettings:
    """Four run at once and two may wait; a llama-server has a place for each that runs, and no bound."""
    return replace(like_the_real_one(), running_max=4, queued_max=None if kind == "llamacpp" else 6)


@asynccontextmanager
async def fake(
    kind: str = "vllm", settings: FakeSettings | None = None, faults: Faults | None = None
) -> AsyncIterator[Subject]:
    engine_fake = FAKES[kind](settings or FakeSettings(engine=sizes(kind)))
    engine_fake.faults = faults or engine_fake.faults
    async with engine_fake as url:
        engine_at = engine_of(kind)
        engine = engine_at(url)
        try:
            yield Subject(engine, engine_at, url, "tiny", FakeControl(engine_fake), time.monotonic, TRAITS[kind])
        finally:
            await engine.close()


def test_K02_a_refusal_inside_a_stream_passes_the_suite() -> None:
    async def test() -> None:
        async with fake(faults=Faults(busy_inside=True)) as subject:
            await suite.busy_is_recognised_and_starts_nothing(subject)

    run_on("asyncio", test())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
@pytest.mark.parametrize("kind", FAKES)
def test_E6_fake_engine(kind: str, case: Callable[[Subject], Awaitable[None]], loop: str) -> None:
    async def test() -> None:
        async with fake(kind) as subject:
            try:
                await case(subject)
            except Unsupported:
                assert case.__name__ in UNSUPPORTED[kind]
            else:
                assert case.__name__ not in UNSUPPORTED[kind]

    run_on(loop, test())


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        ("vllm", {"close_but_run": True}, "proved stopped, and still running"),
        ("vllm", {"ignore_abort": True}, "no close"),
        ("llamacpp", {"close_but_run": True}, "proved stopped, and still running"),
        ("llamacpp", {"ignore_abort": True}, "a whole answer: nothing was stopped"),
        ("sglang", {"close_but_run": True}, "after 5 s"),
        ("sglang", {"ignore_abort": True}, "no close"),
    ],
)
def test_A5_suite_fails_an_engine_that_works_on(kind: str, settings: dict[str, bool], complaint: str) -> None:
    """The negative control: an engine that does not stop must not pass, or passing means nothing."""

    async def test() -> None:
        async with fake(kind, FakeSettings(engine=sizes(kind), **settings)) as subject:
            with pytest.raises((AssertionError, TimeoutError), match=complaint):
                await suite.gone_while_running(subject)

    run_on("asyncio", test())


class RealControl:
    """What can be done to a real engine from outside: the process that steps can be stopped and continued."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _core_pid(self) -> int:
        name = f"HEADWORKS_{self._kind.upper()}_PID"
        server_pid = os.environ.get(name)
        if not server_pid:
            raise Unsupported(f"{name} is not set")
        if self._kind == "llamacpp":
            return int(server_pid)
        for child in Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split():
            if any(core in Path(f"/proc/{child}/cmdline").read_text() for core in ("EngineCore", "scheduler")):
                return int(child)
        raise Unsupported(f"nothing that steps under {name}")

    async def hang(self) -> None:
        os.kill(self._core_pid(), signal.SIGSTOP)

    async def go_on(self) -> None:
        os.kill(self._core_pid(), signal.SIGCONT)

    async def restart(self) -> None:
        raise Unsupported("a real engine is not restarted here")

    async def kill_core(self) -> None:
        if not os.environ.get("HEADWORKS_VLLM_MAY_DIE") or self._kind != "vllm":
            raise Unsupported("HEADWORKS_VLLM_MAY_DIE is not set")
        os.kill(self._core_pid(), signal.SIGKILL)

    async def die(self) -> None:
        raise Unsupported("a real engine is not killed here")

    async def fail_next(self) -> None:
        raise Unsupported("a real engine fails when it likes")

    async def is_inside(self, execution: str) -> bool | None:
        return None


@asynccontextmanager
async def real(kind: str, url: str) -> AsyncIterator[Subject]:
    engine_at = engine_of(kind)
    engine = engine_at(url)
    capacity = await engine.describe()
    try:
        long_tokens = capacity.context_tokens - 16
        yield Subject(engine, engine_at, url, capacity.models[0], RealControl(kind), time.monotonic, TRAITS[kind], long_tokens)
    finally:
        await engine.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
@pytest.mark.parametrize("kind", TRAITS)
def test_E6_real_engine(kind: str, case: Callable[[Subject], Awaitable[None]]) -> None:
    url = os.environ.get(f"HEADWORKS_{kind.upper()}_URL", "")
    if not url:
        pytest.skip(f"HEADWORKS_{kind.upper()}_URL names no engine")

    async def test() -> None:
        async with asyncio.timeout(100), real(kind, url) as subject:
            try:
                await case(subject)
            except Unsupported as reason:
                pytest.skip(str(reason))

    run_on("uvloop", test(), 110)
