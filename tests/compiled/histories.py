"""What a number of seeds come to, as one hash over every event and every effect: the same from compiled code and from Python.

python tests/compiled/histories.py FIRST SEEDS
"""

from __future__ import annotations

import sys
from hashlib import sha256
from typing import TYPE_CHECKING

from headworks import RUNS_AS
from headworks.core.effects import Effect
from headworks.core.events import Event
from headworks.core.gate import Gate
from headworks.sim.campaign import run_world
from headworks.sim.campaign_worlds import small_world

if TYPE_CHECKING:
    from headworks.core.policy import Policy

SEEN = sha256()


class Heard(Gate):
    """A gate of which every word is written down."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        SEEN.update(f"{now_s!r} {event!r}\n".encode())
        effects = super().handle(event, now_s)
        SEEN.update(f"{effects!r}\n".encode())
        return effects


def make_heard(policy: Policy, gateway: str, seed: int, boot: str) -> Gate:
    return Heard(policy, gateway, seed.to_bytes(16, "big"), boot)


def main() -> None:
    first, seeds = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + seeds):
        world = small_world(seed)
        world.make_gate = make_heard
        run_world(world)
    print(RUNS_AS, SEEN.hexdigest(), sep="\n")


if __name__ == "__main__":
    main()
