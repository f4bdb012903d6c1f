"""Verdicts as objects in JSON. The core keeps them as tuples, which an encoder would write as arrays without names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headworks.core.types import Row, Verdict, verdicts

TEXTS_MAX = 2_048
"""Different rows whose text is kept."""


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


class RowTexts:
    """Rows as JSON, for the decision log. Half of a decision's rows were in one before: each is encoded once."""

    __slots__ = ("_encode", "_texts")

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._texts: dict[Row, bytes] = {}

    def join(self, rows: Sequence[Row]) -> msgspec.Raw:
        """All of them, as one array."""
        try:
            joined = b",".join(map(self._texts.__getitem__, rows))
        except KeyError:
            joined = b",".join([self._texts.get(row) or self._text(row) for row in rows])
        return msgspec.Raw(b"[" + joined + b"]")

    def _text(self, row: Row) -> bytes:
        if len(self._texts) >= TEXTS_MAX:
            self._texts.clear()
        text = self._texts[row] = self._encode(ShownVerdict(*verdicts((row,))[0]))
        return text
