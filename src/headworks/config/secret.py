"""Secrets: named in the file, held in the environment, shown nowhere."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

ENVIRONMENT_NAME = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
LENGTH_MAX = 4_096
KEYS_SECRET_LENGTH_MIN = 32
"""Of `ledger.keys_secret`, which all stored keys are hashed under: what is shorter can be guessed."""


class Secret:
    """A value that does not print itself. Whoever needs it says `reveal()`, which is easy to search for."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        """The environment variable it came from: no secret, so messages and client ids may use it."""
        self._value = value

    def reveal(self) -> str:
        """The secret itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        """Whether a reload brings the same value, under whatever name."""
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(type(self))  # nothing that follows from the value

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"


def variable(reference: str) -> str:
    """The NAME of `env:NAME`."""
    found = ENVIRONMENT_NAME.fullmatch(reference)
    assert found is not None, "the schema lets only env:NAME through"
    return found[1]


def resolve(reference: str, environment: Mapping[str, str]) -> Secret:
    """The secret a reference stands for. `fault` was asked before, so it is there."""
    name = variable(reference)
    return Secret(name, environment[name])


def fault(reference: str, environment: Mapping[str, str]) -> str | None:
    """What is wrong with a reference, without the value, or None."""
    name = variable(reference)
    value = environment.get(name)
    if value is None:
        return f"the environment variable {name} is not set; set it, or take the key out"
    if not value:
        return f"the environment variable {name} is empty; a secret is needed"
    if len(value) > LENGTH_MAX or not re.fullmatch(r"[!-~]+", value):
        allowed = f"visible ASCII, at most {LENGTH_MAX} characters, as a header carries it"
        return f"what the environment variable {name} holds cannot be a secret; {allowed}, is allowed"
    return None
