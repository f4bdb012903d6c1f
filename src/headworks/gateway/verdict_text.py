"""The verdicts of a refusal as JSON: what they compared is kept as text, and only the numbers are written anew.

A pool's refusals say the same of the same scopes with other numbers, and they come by thousands when there is least to spare.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headworks.core.types import Row

SHAPES_MAX = 64
"""Sets of comparisons whose text is kept, those used last: with more kinds of refusals at one time most are made anew."""
Text = tuple[bytes, bytes, bytes]
"""What stands before the value, and after the limit: if that is kept, and if it is not."""

_encode = msgspec.json.Encoder().encode


class Shape:
    """Refusals that compared the same things."""

    __slots__ = ("rows", "texts")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        """Of the first of them."""
        self.texts = [_text(row) for row in rows]


_shapes: list[Shape] = []
"""The one that was used last is the first."""


def written(rows: Sequence[Row]) -> bytes:
    """The array of a refusal's body: the fields of `types.Verdict`, in its order. A number without bound is null."""
    if not rows:
        return b"[]"
    texts, parts = _shape(rows).texts, list[bytes]()
    for place in range(len(rows)):
        value, limit = rows[place][2], rows[place][3]
        before, passed, failed = texts[place]
        parts += (before, _number(value), b',"limit":', _number(limit), passed if value <= limit else failed)
    return b"[%b]" % b"".join(parts)[1:]  # each but the first begins with a comma


def _number(number: int | float) -> bytes:
    return b"%d" % number if isinstance(number, int) else _encode(number)


def _shape(rows: Sequence[Row]) -> Shape:
    for place in range(len(_shapes)):
        shape = _shapes[place]
        if _are_alike(rows, shape.rows):
            if place:
                _shapes[0], _shapes[place] = shape, _shapes[0]
            return shape
    shape = Shape(rows)
    _shapes.insert(0, shape)
    del _shapes[SHAPES_MAX:]
    return shape


def _are_alike(rows: Sequence[Row], like: list[Row]) -> bool:
    if len(rows) != len(like):
        return False
    for place in range(len(rows)):
        row, before = rows[place], like[place]
        if row[1] != before[1] or row[5] != before[5] or row[4] != before[4] or row[0] != before[0]:
            return False
    return True


def _text(row: Row) -> Text:
    check, scope, _, _, unit, reason = row
    begins = b',{"check":%b,"scope":%b,"value":' % (_encode(check), _encode(scope))
    named = b',"unit":%b,"passed":' % _encode(unit)
    return begins, named + b'true,"reason":""}', named + b'false,"reason":%b}' % _encode(reason)
