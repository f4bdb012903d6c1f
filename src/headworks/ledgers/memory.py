"""The ledger of one process, in its memory: the default without a file, and what tests run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headworks.core.book import Book
from headworks.core.commands import Answer, Command
from headworks.core.fair import Wake


class MemoryStore:
    """A `LedgerStore` over one `Book`. It answers before `apply` returns.

    `clock_ms` is the store's clock and must not step back. `woken` is told when capacity came free that a gateway's
    flow has the first claim on; a lone gateway needs no telling, because it hears of every release itself.
    """

    guarantee = (
        "Exact for this process and gone with it: a restart forgets what was admitted, and work that still runs is then "
        "found by its engine's load."
    )

    def __init__(self, book: Book, clock_ms: Callable[[], int], woken: Callable[[Wake], None] | None = None) -> None:
        self.book = book
        self._clock_ms = clock_ms
        self._woken = woken
        self._applying = False

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        """Run the commands and answer at once."""
        assert not self._applying, "apply was called from inside its own answer"
        self._applying = True
        try:
            answered(self.book.apply(commands, self._clock_ms()))
        finally:
            self._applying = False
        if self._woken is not None:
            for wake in self.book.take_wakes():
                self._woken(wake)

    def now_ms(self) -> int:
        """The store's clock."""
        return self._clock_ms()

    def close(self) -> None:
        """Nothing to let go of."""
