"""An overload of a whole gateway in front of a fake engine, and the plan that is made of its log (G2)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from app_scene import SIZES, chat, fake_engine, run, scene

from headworks.config import build
from headworks.core.policy import Policy
from headworks.tools.decision_log import lives
from headworks.tools.plan import plan

SECONDS = 6.0
RATE_PER_S = 36
"""About twice what the engine can take."""
KEYS = ("ACME_KEY", "ACME_KEY", "BATCHCO_KEY")
LIMITS: dict[str, Any] = {
    "classes": {"interactive": {"slo": {"ttft_s": 1.2}, "queue": {"wait_s_max": 1.0}}},
    "tenants": {
        "acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 1500},
        "batchco": {"keys": ["env:BATCHCO_KEY"], "share": 2},
    },
}


async def offer(here: Any, random: Random) -> None:
    """So many clients a second, each with a request of its own length; some leave."""

    async def one(number: int) -> None:
        await asyncio.sleep(random.random() * SECONDS)
        client = await here.connect()
        tokens = 200 if number % 10 == 5 else random.randint(8, 48)  # a few are far longer than most, and have to grow
        own = [f"Idempotency-Key: key-{number // 2}"] if number % 30 < 2 else []
        client.send(chat(*own, key=KEYS[number % 3], tokens=tokens, stream=random.random() < 0.8))
        try:
            if number % 20 == 0:
                await asyncio.wait_for(client.answer(), 0.3)
            else:
                await client.answer()
        except (TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            client.close()

    await asyncio.gather(*(one(number) for number in range(int(SECONDS * RATE_PER_S))))


def logged(loop: str, ledger: str, directory: Path) -> Policy:
    """Leaves the log of an overload; returns the policy it was made by."""
    made: list[Policy] = []
    directory.mkdir()

    async def steps() -> None:
        engine = fake_engine(engine=replace(SIZES, cost=replace(SIZES.cost, base_s=0.012)))
        log = {"decisions": str(directory / "decisions")}
        async with scene(engine, pool={"active_requests_max": 6}, log=log, ledger={"url": ledger}, **LIMITS) as here:
            made.append(build.policy(here.text(), number=2))
            await offer(here, Random(f"plan-{loop}"))

    run(loop, steps(), within_s=60.0)
    return made[0]


@pytest.mark.parametrize(("loop", "durable"), [("asyncio", False), ("uvloop", True)])
def test_G2_the_log_of_a_real_gateway_is_reproduced(loop: str, durable: bool, tmp_path: Path) -> None:
    """However much the machine starves the gateway: the log has the order of what came in one turn, and what came late."""
    directory = tmp_path / "gateway"
    policy = logged(loop, f"sqlite:{directory}/ledger.db" if durable else "memory:", directory)
    log = lives(directory / "decisions")
    found = plan(log, policy)
    assert found["control"]["compared"] == int(SECONDS * RATE_PER_S)
    assert found["control"]["reproduced_ratio"] >= 0.99, found["control"]
    assert found["holds"]
    assert found["all"]["all"]["log"]["refused"] > 30
    assert sum(one.ended.marks is not None for one in log[0].arrivals) > 0, "some have grown"
    wider = plan(log, replace(policy, pools={"llama": replace(policy.pools["llama"], active_requests_max=8)}))
    assert wider["all"]["all"]["plan"]["refused"] < found["all"]["all"]["log"]["refused"]
