"""The verdicts of a refusal as JSON: what they compared is kept as text, and only the numbers are written anew.

A pool's refusals say the same of the same scopes with other numbers, and they come by thousands when there is least to spare.
"""

from __future__ import annotations

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

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        """Of the first of them."""
        self.texts = [_text(row) for row in rows]


_shapes: list[Shape] = []
"""The one that was used last is the first."""


def written(rows: tuple[Row, ...]) -> bytes:
    """The array of a refusal's body: the fields of `types.Verdict`, in its order. A number without bound is null."""
    if not rows:
        return b"[]"
    texts, place, parts = _shape(rows).texts, 0, list[bytes]()
    for _, _, value, limit, _, _ in rows:
        before, passed, failed = texts[place]
        place += 1  # noqa: SIM113 (compiled, `enumerate` makes a tuple of each)
        parts.append(before)
        parts.append(b"%d" % value if isinstance(value, int) else _encode(value))
        parts.append(b',"limit":')
        parts.append(b"%d" % limit if isinstance(limit, int) else _encode(limit))
        parts.append(passed if value <= limit else failed)
    return b"[%b]" % b"".join(parts)[1:]  # each but the first begins with a comma


def _shape(rows: tuple[Row, ...]) -> Shape:
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


def _are_alike(rows: tuple[Row, ...], like: tuple[Row, ...]) -> bool:
    if len(rows) != len(like):
        return False
    place = 0
    for check, scope, _, _, unit, reason in rows:
        before = like[place]
        place += 1  # noqa: SIM113
        if scope != before[1] or reason != before[5] or unit != before[4] or check != before[0]:
            return False
    return True


def _text(row: Row) -> Text:
    check, scope, _, _, unit, reason = row
    begins = b',{"check":%b,"scope":%b,"value":' % (_encode(check), _encode(scope))
    named = b',"unit":%b,"passed":' % _encode(unit)
    return begins, named + b'true,"reason":""}', named + b'false,"reason":%b}' % _encode(reason)
