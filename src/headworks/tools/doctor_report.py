"""What an examination found: one finding a check, each with what was seen, and what would mend it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headworks.tools.engine_probe import Found

HOLDS, BROKEN, UNKNOWN, NOTE = "holds", "broken", "unknown", "note"
"""It was seen to be so · seen not to be so · not measurable here, and why · neither good nor bad, and worth knowing."""


@dataclass(slots=True)
class Finding:
    """One check."""

    check: str
    outcome: str
    saw: str
    mend: str = ""
    """What to do about it, where something can be done."""
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
    """What was measured, units in the names."""


@dataclass(slots=True)
class Flag:
    """One thing that the engine was told at its start, or could be told."""

    name: str
    value: str | None
    """As far as it can be seen from outside; None: not visible."""
    how: str
    """Where the value was seen."""
    advice: str = ""
    """What to set, and why; empty where it may stay."""


@dataclass(slots=True)
class Report:
    """The whole examination."""

    url: str
    found: Found
    findings: list[Finding]
    flags: list[Flag]
    evidence: tuple[str, ...] = ()
    """The levels that held here, best proof of a stop first among those of the adapter."""
    evidence_min: str = "E1"
    """What a pool of this engine may ask for (`pools.*.evidence_min`)."""
    is_busy: bool = False
    """Others use it, and it was left alone."""
    took_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Nothing was seen to be broken."""
        return not any(finding.outcome == BROKEN for finding in self.findings)

    def finding(self, check: str) -> Finding | None:
        """That of this check, if it was made."""
        return next((one for one in self.findings if one.check == check), None)
