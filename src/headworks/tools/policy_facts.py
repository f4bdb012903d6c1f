"""The overload and failure policy as values: each field with its unit, its source, how it was got, and what would change it.

A value is `measured` only if it was measured for this page, on this engine. Nothing here has a default that could pass for one:
what could not be measured is `unknown`, and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headworks.config.schema import Config
from headworks.core.policy import Policy
from headworks.tools.doctor_report import Finding, Report
from headworks.tools.measure import Measured
from headworks.tools.policy_physics import Shape
from headworks.tools.policy_probe import Through
from headworks.tools.policy_traffic import Traffic

MEASURED, CONFIG, ENGINE, PHYSICS, UNKNOWN_SOURCE = "measured", "config", "engine", "physics", "unknown"
PASS, FAIL, NOT_MEASURABLE = "pass", "fail", "not measurable here"


@dataclass(slots=True)
class Field:
    """One blank of the page, filled in."""

    section: str
    name: str
    value: float | int | str | None
    unit: str
    source: str
    how: str
    """How it was got; of an unknown one, why it is not known."""
    change: str = ""
    """What would change the policy."""


@dataclass(slots=True)
class Box:
    """One line to be checked before production."""

    section: str
    line: str
    outcome: str
    evidence: str


@dataclass(slots=True)
class Facts:
    """Everything the page is made of."""

    config: Config
    policy: Policy
    pool: str
    service_class: str
    """The class the promises of the page are those of."""
    file: str
    url: str
    """The replica that was measured: the first of the pool."""
    report: Report | None = None
    measured: Measured | None = None
    through: Through | None = None
    traffic: Traffic | None = None
    shape: Shape | None = None
    accelerator_bytes: int | None = None
    why: dict[str, str] = field(default_factory=dict)
    """Of each of these that is None: why."""

    def reason(self, part: str) -> str:
        """Why a part is missing."""
        return self.why.get(part, "it was not asked for")

    def finding(self, check: str) -> Finding | None:
        """Of the engine's examination."""
        return None if self.report is None else self.report.finding(check)

    def flag(self, name: str) -> tuple[str | None, str]:
        """An engine's flag as far as it was seen, and how."""
        for one in self.report.flags if self.report is not None else ():
            if one.name == name:
                return one.value, one.how
        return None, "" if self.report is not None else self.reason("report")

    @property
    def replicas(self) -> int:
        """Of the pool, by the configuration."""
        return len(self.config.pools[self.pool].replicas)

    @property
    def service_per_s(self) -> float | None:
        """Of one replica."""
        return None if self.measured is None else self.measured.full.requests_per_s


class Sheet:
    """One section of the page, being written."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.fields: list[Field] = []

    def known(self, name: str, value: float | int | str | None, unit: str, source: str, how: str, change: str = "") -> None:
        """A value; where there is none after all, that it is not known."""
        if value is None:
            self.unknown(name, unit, f"none was seen ({how})", change)
            return
        self.fields.append(Field(self.title, name, value, unit, source, how, change))

    def unknown(self, name: str, unit: str, why: str, change: str = "") -> None:
        """It is not known here, and why."""
        self.fields.append(Field(self.title, name, None, unit, UNKNOWN_SOURCE, why, change))
