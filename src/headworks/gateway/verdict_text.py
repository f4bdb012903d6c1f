"""The verdicts of a refusal as JSON: what they compared is looked up as text, and only the numbers are written anew.

A pool's refusals say the same of the same scopes with other numbers, and they come by thousands when there is least to spare.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headworks.core.types import Row

TEXTS_MAX = 4_096
"""Comparisons whose text is kept; beyond, all are made anew."""
Text = tuple[bytes, bytes, bytes]
"""What stands before the value, after the limit if it is kept, and if it is not."""

_encode = msgspec.json.Encoder().encode
_texts: dict[tuple[str, str, str, str], Text] = {}


def written(rows: Sequence[Row]) -> bytes:
    """The array of a refusal's body: the fields of `types.Verdict`, in its order. A number without bound is null."""
    if not rows:
        return b"[]"
    numbers = _encode([number for row in rows for number in (row[2], row[3])])[1:-1].split(b",")
    parts: list[bytes] = []
    for place in range(len(rows)):
        row = rows[place]
        text = _texts.get((row[0], row[1], row[4], row[5]))
        before, passed, failed = _made(row) if text is None else text
        parts += (before, numbers[2 * place], b',"limit":', numbers[2 * place + 1], passed if row[2] <= row[3] else failed)
    return b"[%b]" % b"".join(parts)[1:]


def _made(row: Row) -> Text:
    check, scope, _, _, unit, reason = row
    if len(_texts) >= TEXTS_MAX:
        _texts.clear()
    before = b',{"check":%b,"scope":%b,"value":' % (_encode(check), _encode(scope))
    passed, failed = (
        b',"unit":%b,"passed":%b,"reason":%b}' % (_encode(unit), told, _encode(said))
        for told, said in ((b"true", ""), (b"false", reason))
    )
    text = _texts[check, scope, unit, reason] = before, passed, failed
    return text
