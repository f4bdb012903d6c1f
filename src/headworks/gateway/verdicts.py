"""Verdicts as objects in JSON. The core keeps them as tuples, which an encoder would write as arrays without names."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headworks.core.types import Verdict


class ShownVerdict(msgspec.Struct, gc=False):
    """The fields of `Verdict`, in its order."""

    check: str
    scope: str
    value: float
    limit: float
    unit: str
    passed: bool
    reason: str


def shown(verdicts: Iterable[Verdict]) -> list[ShownVerdict]:
    """For a refusal's body."""
    return [ShownVerdict(*verdict) for verdict in verdicts]
