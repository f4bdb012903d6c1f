"""What was asked for while the policy was changed, and comes back refused, is judged by the new policy like all that waited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.commands import Answer, Reserve
from headworks.core.effects import Ask, Reply
from tests.core.driver import Bench, policy


@pytest.mark.parametrize(("tokens_max", "refused"), [(99, ["request_exceeds_capacity"]), (100, [])])
def test_A2_what_no_waiting_can_let_in_any_more_is_told_so(tokens_max: int, refused: list[str]) -> None:
    """Found by the campaign (short seeds 28239, 38066): where nothing drops what is late, it waited for ever."""
    made = policy(drop_late=False)
    bench = Bench(made)
    bench.lose_asks = True
    bench.arrive(100)
    (asked,) = [command for ask in bench.take(Ask) for command in ask.commands if isinstance(command, Reserve)]
    tenants = {name: replace(one, active_tokens_max=tokens_max) for name, one in made.tenants.items()}
    bench.feed(events.PolicyChanged(replace(made, version="v2", number=2, tenants=tenants)))
    assert bench.take(Reply) == []
    bench.feed(events.LedgerAnswered([Answer("reserve", asked.execution, "refused", owner=asked.owner)]))
    assert [reply.decision.reason for reply in bench.take(Reply)] == refused
    assert list(bench.gate._desk.lives) == ([] if refused else ["r1"])
