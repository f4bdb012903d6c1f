"""What can go wrong with a ledger outside of its commands."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger cannot be opened. The text says what was asked and what would help."""


class WriteError(Exception):
    """Nothing of what was to be written has been written. The text says why."""
