"""By when a request has to start: forecast again before one that waited is sent, and before it is told to be too late (B6).

By when it has to start was said when it came, by what an engine was expected to have before it by then. When its turn comes
that is known: what is there to be read now. Ten seconds of a wait for long prompts can make the one twice the other, and either
way it matters: sent in time by the old forecast it would be late, or it is told to be too late and would be in time.

Not looked at again is what no forecast holds up (`core/reserves.py`, calls of sessions), and what has a last moment of its own
(`core/fallback.py`).
"""

from __future__ import annotations

from headworks.core.forecast import prefill_of
from headworks.core.life import Life
from headworks.core.replica import Replica
from headworks.core.unread import to_read_tokens

LATER_S = 0.01
"""A last moment that is moved by less is not."""


def start_by_s(life: Life, prefill_s: float) -> float:
    """The last instant at which starting still helps (B6): min(TTFT promise − t_prefill, wait limit, the client's own)."""
    lane = life.lane
    wait_s, promise_s = lane.wait_s_max, lane.ttft_slo_s
    if promise_s is not None and promise_s - prefill_s < wait_s:
        wait_s = promise_s - prefill_s
    by_s = life.waits_from_s + wait_s if wait_s > 0.0 else life.waits_from_s
    client_s = life.request.start_by_s - prefill_s
    return client_s if client_s < by_s else by_s


def is_looked_at(life: Life) -> bool:
    """Whether the forecast of its first token says when it has to start."""
    lane = life.lane
    return lane.reserve is None and lane.session is None and lane.cascade is None and lane.service_class.ttft_slo_s is not None


def before_sending(life: Life, replica: Replica, now_s: float) -> bool:
    """It would go there now. Whether that is in time: `life.start_by_s`. False: not there, but in time where there is no room
    yet, so it waits for that. To look at the one and then at the other, in turn, would never come to an end."""
    if not is_looked_at(life):
        return True
    life.start_by_s = start_by_s(life, prefill_of(life.work, life.lane, replica, now_s))
    if now_s <= life.start_by_s:
        return True
    replica.prefill.refused(to_read_tokens(life.work, life.lane), now_s)  # it had room: that is to be tried, not only believed
    return not before_telling(life, now_s)


def before_telling(life: Life, now_s: float) -> bool:
    """Its time is over by the forecast that it came with. Whether it is not by that of now."""
    if not is_looked_at(life):
        return False
    pool = life.lane.pool
    replica = pool.single or pool.reads_least()
    by_s = start_by_s(life, prefill_of(life.work, life.lane, replica, now_s))
    if by_s <= now_s + LATER_S:
        return False
    life.start_by_s = by_s
    return True
