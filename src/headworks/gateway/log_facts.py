"""What a decision depended on beside the decision itself, in the decision log, so that `headworks plan` can make it again.

A decision follows from the request, the policy, what the engines said, and everything that was decided before. So the log
also has, each as a line of its own kind:

    began    this process: its name, its boot, its version, how far its clock is from UTC
    policy   the policy in force from here on, whole, as the core sees it
    engine   what an engine said it can hold
    sample   one look at an engine; while an engine has nothing to do, one in `IDLE_S` seconds
    unseen   a look that failed
    late     the process was busy: something was due, and was done this much later
    used     what tenants had used of their periods already, by the usage journal
    drain    nobody new is admitted from here on
    declared what an operator did by hand: who, what, of what, why, and what came of it (F13)

Each has the instant at which the gate was told of it. The first three stand at the beginning of each file. An outcome has what
its client asked for, in numbers: no prompt, no fingerprint. None of it costs a request more than a dozen of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headworks import __version__
from headworks.core.events import (
    Drain,
    Event,
    PolicyChanged,
    ReplicaDescribed,
    ReplicaSampled,
    SampleFailed,
    Tick,
    UsageRead,
)
from headworks.core.policy import Policy
from headworks.core.types import Capacity, Charge, ReplicaSample

if TYPE_CHECKING:
    from headworks.gateway.decisions import DecisionLog

IDLE_S = 5.0
LATE_S = 0.0001
"""A tick that came so much after it was due is a line: what came between was handled before what was due."""


class Began(msgspec.Struct):
    """One life of one gateway process."""

    gateway: str
    boot: str
    version: str
    utc_offset_s: float
    ledger: str
    """Its kind: one that is durable answers what lets work start a moment later."""


class Unseen(msgspec.Struct):
    """A look at an engine that did not come back."""

    replica: str
    unreachable: bool


class Used(msgspec.Struct):
    """So much of running periods, by quota scope and unit."""

    used: tuple[Charge, ...]


class Draining(msgspec.Struct):
    """What runs may run until then."""

    until_s: float


class Late(msgspec.Struct):
    """What was due then is done now."""

    due_s: float


class Declared(msgspec.Struct):
    """What an operator did by hand."""

    actor: str
    """The admin key it was done with: `server.admin_key`, or the id of a stored one."""
    verb: str
    subject: str
    reason: str
    outcome: str


Fact = Declared | Began | Policy | Capacity | ReplicaSample | Unseen | Used | Draining | Late


class Facts:
    """Writes them, where a decision log is kept."""

    def __init__(self, log: DecisionLog | None) -> None:
        self._log = log
        self._idle_until_s: dict[str, float] = {}
        """Replicas whose last sample in the log showed nothing inside, and until when that says enough."""

    def began(self, gateway: str, boot: str, utc_offset_s: float, ledger: str, policy: Policy) -> Facts:
        """The first lines of a life; gives itself."""
        if self._log is not None:
            self._log.fact("began", Began(gateway, boot, __version__, utc_offset_s, ledger), "began")
            self._log.fact("policy", policy, "policy")
        return self

    def declared(self, declared: Declared) -> None:
        """An operator did something by hand. Each of them stands in the log, whatever came of it."""
        if self._log is not None:
            self._log.fact("declared", declared)

    def take(self, event: Event, at_s: float) -> None:
        """The gate is told of something that decisions depend on."""
        log = self._log
        if log is None:
            return
        if isinstance(event, Tick):
            if at_s - event.due_s > LATE_S:
                log.fact("late", Late(event.due_s), at_s=at_s)
        elif isinstance(event, ReplicaSampled):
            if not self._says_enough(event.sample):
                log.fact("sample", event.sample, at_s=at_s)
        elif isinstance(event, ReplicaDescribed):
            log.fact("engine", event.capacity, event.capacity.replica, at_s)
        elif isinstance(event, SampleFailed):
            self._idle_until_s.pop(event.replica, None)
            log.fact("unseen", Unseen(event.replica, event.unreachable), at_s=at_s)
        elif isinstance(event, PolicyChanged):
            log.fact("policy", event.policy, "policy", at_s)
        elif isinstance(event, UsageRead):
            log.fact("used", Used(event.used), at_s=at_s)
        elif isinstance(event, Drain):
            log.fact("drain", Draining(event.until_s), at_s=at_s)

    def _says_enough(self, sample: ReplicaSample) -> bool:
        """Whether this engine was idle in the last line about it, a moment ago, and still is."""
        if sample.running != 0 or sample.waiting != 0:
            self._idle_until_s.pop(sample.replica, None)
            return False
        if sample.begun_s < self._idle_until_s.get(sample.replica, 0.0):
            return True
        self._idle_until_s[sample.replica] = sample.begun_s + IDLE_S
        return False
