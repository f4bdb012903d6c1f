"""One of four engines is killed, hangs, is slow, is restarted under load: the pool loses its share and no more (D4, B16).

The whole gateway before four fake engines, on a loop whose time passes only while nobody has anything to do, so what else the
machine does changes nothing. As processes and by the machine's clock: `tests/drills/test_four_engines.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from app_scene import Scene, chat, scene

from headworks import IS_COMPILED
from headworks.gateway import clock
from headworks.sim.presets import FixedRateSettings
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine
from headworks.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.skipif(IS_COMPILED, reason="a compiled clock is not to be replaced")

RATE_PER_S = 36.0
CALM_S, FAULT_S = 6.0, 8.0
GOOD_S = 3.0
SHARE = 0.25
CLASSES = {
    "interactive": {
        "slo": {"ttft_s": 1.5, "e2e_s": GOOD_S, "tpot_s": None},
        "queue": {"wait_s_max": 0.8},
        "timeouts": {"first_byte_s": 2, "idle_s": 2, "gateway_s": 10, "client_s": 20},
    }
}
FAULTS: dict[str, tuple[Callable[[FakeEngine], None], Callable[[FakeEngine], None]]] = {
    "killed": (lambda engine: engine.restart(down_s=FAULT_S), lambda engine: None),
    "hung": (FakeEngine.hang, FakeEngine.resume),
    "slow": (lambda engine: engine.slow(4.0), FakeEngine.heal),
    "restarted": (lambda engine: engine.restart(down_s=0.3), lambda engine: None),
}


async def one(s: Scene, number: int, good_s: list[float], others: Counter[str]) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    client = await s.connect()
    try:
        client.send(chat(f"X-Request-Id: r{number}", tokens=16, stream=True))
        answer = await client.answer()
    except (asyncio.IncompleteReadError, OSError):
        others["broken"] += 1
        return
    finally:
        client.close()
    if answer.status != 200 or not answer.body.endswith(b"data: [DONE]\n\n"):
        others[str(answer.status)] += 1
    elif loop.time() - began_s > GOOD_S:
        others["late"] += 1
    else:
        good_s.append(loop.time())


async def offer(s: Scene, good_s: list[float], others: Counter[str], fault: Callable[[], None]) -> float:
    """Arrivals at random, each on time whatever became of those before. When the fault began."""
    loop, random, asking = asyncio.get_running_loop(), Random(1), []
    began_s = next_s = loop.time()
    loop.call_at(began_s + CALM_S, fault)
    while next_s < began_s + CALM_S + FAULT_S:
        next_s += random.expovariate(RATE_PER_S)
        await asyncio.sleep(next_s - loop.time())
        asking.append(asyncio.ensure_future(one(s, len(asking), good_s, others)))
    await asyncio.gather(*asking)
    return began_s + CALM_S


@pytest.mark.parametrize("kind", FAULTS)
def test_D4_whatever_befalls_one_of_four_engines_costs_its_share_and_no_more(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        monkeypatch.setattr(clock, "now_s", asyncio.get_running_loop().time)
        engines = [FakeEngine(FakeSettings(engine=FixedRateSettings(rate_per_s=10, servers=2))) for _ in range(4)]
        async with scene(*engines, pool={"active_requests_max": 2}, classes=CLASSES) as s:
            good_s: list[float] = []
            others: Counter[str] = Counter()
            begin, end = FAULTS[kind]
            fault_s = await offer(s, good_s, others, lambda: begin(engines[2]))
            end(engines[2])
            before = sum(at_s < fault_s for at_s in good_s if at_s >= fault_s - CALM_S + 1) / (CALM_S - 1)
            meanwhile = sum(fault_s <= at_s < fault_s + FAULT_S for at_s in good_s) / FAULT_S
            print(f"{kind}: good {before:.1f}/s before, {meanwhile:.1f}/s meanwhile; the others {dict(others)}")
            assert before >= 0.9 * RATE_PER_S, "or there was nothing to lose"
            assert meanwhile >= (1 - SHARE) * before
            await s.settled()
            outcomes = s.everything("outcome")
            assert Counter(record["id"] for record in outcomes).most_common(1)[0][1] == 1, "one outcome for each arrival"
            ran = [record["execution"] for record in outcomes if record["execution"]]
            assert len(set(ran)) == len(ran)
            pool = s.app.snapshot()["pools"]["llama"]
            assert pool["upstream_retried"] <= 0.1 * (pool["upstream_sent"] - pool["upstream_retried"]) + 3

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(steps())
