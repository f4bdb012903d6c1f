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
        texts = self._texts
        try:
            return msgspec.Raw(b"[%b]" % b",".join([texts[row] for row in rows]))
        except KeyError:
            return msgspec.Raw(b"[%b]" % b",".join([texts[row] if row in texts else self._text(row) for row in rows]))

    def _text(self, row: Row) -> bytes:
        if len(self._texts) >= TEXTS_MAX:
            self._texts.clear()
        (verdict,) = verdicts((row,))
        text = self._texts[row] = self._encode(ShownVerdict(*verdict))
        return text
