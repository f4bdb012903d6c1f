"""The engine suite on the fake engine, and on a real one where `HEADWORKS_VLLM_URL` names it.

A real one is best started with `--max-num-seqs 4 --max-num-queued-reqs 6`, alone on its machine, for nobody else. With
`HEADWORKS_VLLM_PID` (the API server's process) it can be hung, with `HEADWORKS_VLLM_MAY_DIE` it is killed at the end.
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

from headworks.engines.vllm import VllmEngine
from headworks.testing.fake.settings import FakeSettings, Faults, like_the_real_one
from headworks.testing.fake_engine import FakeEngine
from headworks.testing.suites import engine as suite
from headworks.testing.suites.engine import CASES
from headworks.testing.suites.engine_subject import Subject, Unsupported

REAL_URL = os.environ.get("HEADWORKS_VLLM_URL", "")


def engine_at(url: str) -> VllmEngine:
    return VllmEngine("llama/0", url, time.monotonic)


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


@asynccontextmanager
async def fake(settings: FakeSettings | None = None, faults: Faults | None = None) -> AsyncIterator[Subject]:
    sizes = replace(like_the_real_one(), running_max=4, queued_max=6)
    engine_fake = FakeEngine(settings or FakeSettings(engine=sizes))
    engine_fake.faults = faults or engine_fake.faults
    async with engine_fake as url:
        engine = engine_at(url)
        try:
            yield Subject(engine, engine_at, url, "tiny", FakeControl(engine_fake), time.monotonic)
        finally:
            await engine.close()


def test_K02_a_refusal_inside_a_stream_passes_the_suite() -> None:
    async def test() -> None:
        sizes = replace(like_the_real_one(), running_max=4, queued_max=6)
        async with fake(FakeSettings(engine=sizes), Faults(busy_inside=True)) as subject:
            await suite.busy_is_recognised_and_starts_nothing(subject)

    run_on("asyncio", test())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_E6_fake_engine(case: Callable[[Subject], Awaitable[None]], loop: str) -> None:
    async def test() -> None:
        async with fake() as subject:
            await case(subject)

    run_on(loop, test())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (FakeSettings(close_but_run=True), "proved stopped, and still running"),
        (FakeSettings(ignore_abort=True), "no close"),
    ],
    ids=["closes-and-runs-on", "ignores-the-abort"],
)
def test_A5_suite_fails_an_engine_that_works_on(settings: FakeSettings, complaint: str) -> None:
    """The negative control: an engine that does not stop must not pass, or passing means nothing."""

    async def test() -> None:
        async with fake(settings) as subject:
            with pytest.raises(AssertionError, match=complaint):
                await suite.gone_while_running(subject)

    run_on("asyncio", test())


class RealControl:
    """What can be done to a vLLM from outside: its core process can be stopped and continued."""

    def _core_pid(self) -> int:
        server_pid = os.environ.get("HEADWORKS_VLLM_PID")
        if not server_pid:
            raise Unsupported("HEADWORKS_VLLM_PID is not set")
        for child in Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split():
            if "EngineCore" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        raise Unsupported("no EngineCore process under HEADWORKS_VLLM_PID")

    async def hang(self) -> None:
        os.kill(self._core_pid(), signal.SIGSTOP)

    async def go_on(self) -> None:
        os.kill(self._core_pid(), signal.SIGCONT)

    async def restart(self) -> None:
        raise Unsupported("a real engine is not restarted here")

    async def kill_core(self) -> None:
        if not os.environ.get("HEADWORKS_VLLM_MAY_DIE"):
            raise Unsupported("HEADWORKS_VLLM_MAY_DIE is not set")
        os.kill(self._core_pid(), signal.SIGKILL)

    async def die(self) -> None:
        raise Unsupported("a real engine is not killed here")

    async def fail_next(self) -> None:
        raise Unsupported("a real engine fails when it likes")

    async def is_inside(self, execution: str) -> bool | None:
        return None


@asynccontextmanager
async def real() -> AsyncIterator[Subject]:
    engine = engine_at(REAL_URL)
    capacity = await engine.describe()
    try:
        yield Subject(engine, engine_at, REAL_URL, capacity.models[0], RealControl(), time.monotonic)
    finally:
        await engine.close()


@pytest.mark.skipif(not REAL_URL, reason="HEADWORKS_VLLM_URL names no engine")
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_E6_real_vllm(case: Callable[[Subject], Awaitable[None]]) -> None:
    async def test() -> None:
        async with asyncio.timeout(100), real() as subject:
            try:
                await case(subject)
            except Unsupported as reason:
                pytest.skip(str(reason))

    run_on("uvloop", test(), 110)
