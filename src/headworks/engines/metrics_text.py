"""The few series that are wanted, out of a page in the Prometheus text format.

An engine's page is some 60 kB and is read up to ten times a second while something is unconfirmed, on the loop that
relays tokens: so nothing is parsed but the lines asked for, which `bytes.find` reaches in microseconds. The tests hold
this to what prometheus-client's own parser reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SERIES = re.compile(rb'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+([^ \t\n]+)')
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(.)")
SAMPLE_MAX = 2.0**53
"""Every series that is read here counts something. What is negative, beyond this, infinite or NaN is no count: it is as if it
were not there, and what rests on it is not proved."""


def series(page: bytes, name: bytes) -> Iterator[tuple[dict[str, str], float]]:
    """Every sample of the series, in the page's order. None at all is not zero: it means the engine does not say."""
    for end in _ends(page, name):
        found = _SERIES.match(page, end)
        if found is not None:
            try:
                sample = float(found[2])
            except ValueError:
                continue
            if 0 <= sample <= SAMPLE_MAX:
                yield labels(found[1] or b""), sample


def _ends(page: bytes, name: bytes) -> Iterator[int]:
    """Where the name ends, wherever a line begins with it. Longer names are among them."""
    if page.startswith(name):
        yield len(name)
    line_begin = b"\n" + name
    position = page.find(line_begin)
    while position >= 0:
        yield position + len(line_begin)
        position = page.find(line_begin, position + len(line_begin))


def labels(written: bytes) -> dict[str, str]:
    """`a="1",b="2"` as a dictionary."""
    return {name.decode(): _unescaped(value).decode("utf-8", "replace") for name, value in _LABEL.findall(written)}


def _unescaped(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)


def summed_by(page: bytes, name: bytes, label: str) -> dict[str, float]:
    """The series added up for each value of one label; what lacks the label is under ""."""
    sums: dict[str, float] = {}
    for found, value in series(page, name):
        key = found.get(label, "")
        sums[key] = sums.get(key, 0.0) + value
    return sums


def value(page: bytes, name: bytes) -> float | None:
    """The sum of the series, or None where the page has none of it."""
    sums = [sample for _, sample in series(page, name)]
    return sum(sums) if sums else None
