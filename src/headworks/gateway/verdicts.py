"""Verdicts as objects in JSON. The core keeps them as tuples, which an encoder would write as arrays without names."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headworks.core.types import Row


class ShownVerdict(msgspec.Struct, gc=False):
    """The fields of `Verdict`, in its order."""

    check: str
    scope: str
    value: float
    limit: float
    unit: str
    passed: bool
    reason: str


def shown(rows: Iterable[Row]) -> list[ShownVerdict]:
    """For a refusal's body: what `types.verdicts` says of these rows, without making its tuples in between."""
    return [
        ShownVerdict(check, scope, value, limit, unit, value <= limit, "" if value <= limit else reason)
        for check, scope, value, limit, unit, reason in rows
    ]
