"""What a campaign must have met (the S-properties, I43): a campaign that never saw a rare thing says nothing about it.

Each goal is the name of something that was noted while histories ran: by the watch (`invariants.py`), by the line to the
ledger, or here, at a history's end. A campaign of `GOALS_FROM_SEEDS` seeds that misses one has not done its work.
"""

from __future__ import annotations

from headworks.sim.faults import KINDS
from headworks.sim.invariants import Watch
from headworks.sim.points import POINTS, points_of
from headworks.sim.simulation import Arrival, Simulation

GOALS_FROM_SEEDS = 2_000
"""The rarest of them, an orphan that is counted out, is met about once in 150 short histories."""
OF_THE_MATRIX = ("engine_slow", "store_clock_forward", "store_clock_back")
"""Faults of the fault matrix only."""
GOALS: tuple[str, ...] = (
    # the line to the ledger
    *("late", "lost_command", "lost_answer", "twice", "cut_off"),
    # what was armed in our own shell
    *(f"armed {point}" for point in POINTS),
    # what the world did
    *(f"fault {kind}" for kind in KINDS if kind not in OF_THE_MATRIX),
    # ends, by what proved them; of what a dead gateway left, too
    *("ended by E0", "ended by E1", "ended by E3a", "ended by E3b", "ended by E4"),
    *("orphaned", "orphan ended by E0", "orphan ended by E1", "orphan ended by E3a"),
    *("orphan ended by E3b", "orphan ended by E4"),
    # the ledger's answers
    *("stop recorded", "reserve dead", "reserve fenced", "grow granted", "grow recorded", "grow refused"),
    *("another store", "reassert ok", "reassert recorded"),
    # identity: 409, 422, one answer for several, an answer from memory
    *("claim claimed", "claim attach", "claim replay", "outcome replayed"),
    *("outcome refused idempotency_in_progress", "outcome refused idempotency_key_reused"),
    # what clients were told
    *("outcome completed", "outcome cancelled", "outcome expired queue_timeout", "outcome expired prefill_saturated"),
    *("outcome refused queue_full", "outcome refused ledger_unavailable", "outcome refused rate_limit_exceeded"),
    *("outcome refused insufficient_quota", "outcome failed upstream_lost", "outcome failed upstream_timeout"),
    *("outcome failed deadline_exceeded", "ticket kept", "floor used"),
    # sessions
    *("session opened", "call of a session granted", "session closed ok closed", "session idle"),
)


def missed(reached: dict[str, int], goals: tuple[str, ...] = GOALS) -> list[str]:
    """The goals that were not met."""
    return [goal for goal in goals if not reached.get(goal)]


def note_goals(simulation: Simulation, watch: Watch) -> None:
    """What can be said of a history once it is over."""
    for fault in simulation.setup.faults:
        watch.note(f"fault {fault.kind}")
    points = points_of(simulation.setup.make_runner)
    for point in points.fired if points is not None else ():
        watch.note(f"armed {point}")
    if any(replica.turned_away for replica in simulation.replicas.values()):
        watch.note("engine busy")
    for arrival in simulation.arrivals.values():
        _of_an_arrival(simulation, arrival, watch)


def _of_an_arrival(simulation: Simulation, arrival: Arrival, watch: Watch) -> None:
    outcome, attempt = arrival.outcome, arrival.attempt
    if attempt.number > 0:
        watch.note("tried again")
    if attempt.left_s is not None and arrival.caller.hidden:
        watch.note("client vanished")
    if outcome is None or outcome.outcome != "completed":
        return
    if outcome.retry_kind == "ticket_kept":
        watch.note("ticket kept")
    has_floor = simulation.policy.classes[outcome.service_class].floor_ratio > 0
    if has_floor and arrival.decision is not None and arrival.decision.outcome == "queue":
        watch.note("floor used")
