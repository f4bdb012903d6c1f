"""The second witness: what the engines physically hold, against what the ledger says is charged.

A ledger that frees too early agrees with itself for ever; only the memory of the engine disagrees with it. So the
auditor believes neither the ledger's sums nor the engine's gauges. After every event it takes the ledger's view (which
executions are charged, with what) and `EngineModel.held` of every engine, and reports each way in which they cannot
both be right. It never repairs anything, and no policy may see what it sees.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from headworks.sim.engine import EngineModel, Held


class Charged(NamedTuple):
    """What the ledger holds for one execution: tokens over all its sequences, and how many sequences."""

    tokens: int
    sequences: int


class Breach(StrEnum):
    """The ways in which ledger and engines can contradict each other."""

    FREED_EARLY = "freed_early"
    """Charged once, free now, and still inside an engine."""
    NEVER_CHARGED = "never_charged"
    """Inside an engine although the ledger never held anything for it."""
    HOLDS_MORE = "holds_more"
    """It occupies more than its charge, blocks rounded up."""
    RUNS_TWICE = "runs_twice"
    """Inside two engines at once."""
    RUNS_AGAIN = "runs_again"
    """It had left, and the same execution is inside once more."""
    OVER_CAPACITY = "over_capacity"
    """An engine has handed out more memory than it has."""


@dataclass(slots=True)
class Violation:
    """One contradiction, with the two figures that cannot both be right."""

    breach: Breach
    engine: str
    execution: str
    held: int
    charged: int
    at_s: float

    def __str__(self) -> str:
        subject = f"{self.execution} on {self.engine}" if self.execution else self.engine
        return f"at {self.at_s:.6f} s {subject}: {self.breach} (held {self.held} tokens, charged {self.charged})"


class Auditor:
    """Call `check` after every event. It remembers who was charged and who has left, up to `remembered_max` each."""

    def __init__(self, *, overrun_tokens: int = 0, remembered_max: int = 100_000) -> None:
        """`overrun_tokens`: how far a sequence may pass its charge, such as one growth step or an estimate's error."""
        self._overrun_tokens = overrun_tokens
        self._remembered_max = remembered_max
        self._inside: dict[str, str] = {}
        self._left: OrderedDict[str, None] = OrderedDict()
        self._charged_once: OrderedDict[str, None] = OrderedDict()

    def check(
        self, now_s: float, charged: Mapping[str, tuple[int, int]], engines: Mapping[str, EngineModel]
    ) -> list[Violation]:
        """Everything that is wrong now, engines in the order given. `charged`: execution → (tokens, sequences)."""
        for execution in charged:
            self._remember(self._charged_once, execution)
        violations: list[Violation] = []
        inside: dict[str, str] = {}
        for name, engine in engines.items():
            used = engine.used_tokens()
            if used > engine.kv_tokens:
                violations.append(Violation(Breach.OVER_CAPACITY, name, "", used, engine.kv_tokens, now_s))
            for execution, held in engine.held(now_s).items():
                charge = charged.get(execution)
                for breach in self._breaches(execution, held, charge, inside, engine.block_tokens):
                    paid = charge[0] if charge is not None else 0
                    violations.append(Violation(breach, name, execution, held.kv_tokens, paid, now_s))
                inside[execution] = name
        for execution in self._inside:
            if execution not in inside:
                self._remember(self._left, execution)
        self._inside = inside
        return violations

    def _breaches(
        self, execution: str, held: Held, charge: tuple[int, int] | None, inside: Mapping[str, str], block_tokens: int
    ) -> list[Breach]:
        found: list[Breach] = []
        if execution in inside:
            found.append(Breach.RUNS_TWICE)
        if execution in self._left:
            found.append(Breach.RUNS_AGAIN)
        if charge is None:
            found.append(Breach.FREED_EARLY if execution in self._charged_once else Breach.NEVER_CHARGED)
            return found
        tokens, sequences = charge
        allowed = tokens + sequences * (self._overrun_tokens + block_tokens - 1)
        if held.sequences > sequences or held.kv_tokens > allowed:
            found.append(Breach.HOLDS_MORE)
        return found

    def _remember(self, memory: OrderedDict[str, None], execution: str) -> None:
        memory[execution] = None
        if len(memory) > self._remembered_max:
            memory.popitem(last=False)
