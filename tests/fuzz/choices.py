"""Bytes as choices: what a fuzzer changes is then what is chosen, and any bytes choose something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

One = TypeVar("One")


class Choices:
    """Reads from the front. When nothing is left, everything is the first of its kind."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        if self._at >= len(self._data) or below < 2:
            return 0
        self._at += 1
        return self._data[self._at - 1] % below

    def of(self, them: Sequence[One]) -> One:
        return them[self.number(len(them))]

    def text(self) -> str:
        """A short one of whatever characters its bytes are."""
        return self.some().decode("utf-8", "replace")

    def some(self) -> bytes:
        length = self.number(32)
        self._at += length
        return self._data[self._at - length : self._at]

    def rest(self) -> bytes:
        return self._data[self._at :]

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def places(self) -> list[int]:
        """Up to seven, for `cut`."""
        return [self.number(256) for _ in range(self.number(8))]


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces, none of them empty. Places go round, so that each is one of whatever there is."""
    begins = sorted({place * 257 % max(len(whole), 1) if place > 127 else place for place in places} | {0})
    return [piece for begin, end in zip(begins, [*begins[1:], len(whole)], strict=True) if (piece := whole[begin:end])]
