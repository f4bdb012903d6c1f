"""What is wrong with a configuration, told. How it is found and put into words: `problems.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Problem:
    """One thing to correct, or one warning."""

    file: str
    """Or the option of the command line."""
    line: int
    """0: there is no line."""
    path: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.path + ': ' if self.path else ''}{self.text}"


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has all of them."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
