"""What a scenario says must come out of it, and whether it did.

An expectation is a path into the results and a condition, such as `disciplines.fifo.admitted: {equals: 632}`. A
scenario that states expectations is a test anybody can run; one that fails says what was found and what was expected.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Condition(BaseModel):
    """One condition on one number. `about`: [value, ratio] allows that share on either side. `times`: [factor, path, …] is
    at least so many times the largest of what the results have at those other paths."""

    model_config = ConfigDict(extra="forbid")

    equals: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    between: tuple[float, float] | None = None
    about: tuple[float, float] | None = None
    times: tuple[float, str] | tuple[float, str, str] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if not self.model_fields_set:
            raise ValueError("say one of equals, at_least, at_most, between, about, times")
        return self

    def holds(self, value: float) -> bool:
        # Results are rounded to a millionth; equality means equal at that resolution.
        if self.equals is not None and abs(value - self.equals) > 1e-9:
            return False
        if self.at_least is not None and value < self.at_least:
            return False
        if self.at_most is not None and value > self.at_most:
            return False
        if self.between is not None and not self.between[0] <= value <= self.between[1]:
            return False
        if self.about is not None:
            wanted, ratio = self.about
            return abs(value - wanted) <= abs(wanted) * ratio + 1e-9
        return True

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.model_dump(exclude_none=True).items())


def failures(expectations: dict[str, Condition], found: dict[str, Any]) -> list[str]:
    """One sentence for each expectation that does not hold."""
    sentences: list[str] = []
    for path, condition in expectations.items():
        try:
            value = _at(found, path)
            condition = _compared(condition, found)
        except KeyError as missing:
            sentences.append(f"{path}: there is no {missing} in the results")
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            sentences.append(f"{path}: is {value!r}, not a number; expected: {condition}")
        elif not condition.holds(value):
            sentences.append(f"{path}: is {value:g}; expected: {condition}")
    return sentences


def _compared(condition: Condition, found: dict[str, Any]) -> Condition:
    """With a number in the place of another path."""
    if condition.times is None:
        return condition
    factor, *paths = condition.times
    return Condition(at_least=factor * max(_at(found, path) for path in paths))


def _at(found: dict[str, Any], path: str) -> Any:
    value: Any = found
    for step in path.split("."):
        if not isinstance(value, dict) or step not in value:
            raise KeyError(step)
        value = value[step]
    return value
