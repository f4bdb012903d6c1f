"""An instant of its own for each event: the turn of the loop in which it is handled, and its place in that turn.

What comes in one turn is handled at one time by the clock (decision 22), and who was first decides who gets the room. So that
every time that is written down says that too, a turn begins on a grid of ten microseconds, and each of its events is ten
nanoseconds after the one before: the last three of eight decimals are its place.
"""

from __future__ import annotations

from math import ceil

INSTANTS_PER_S = 100_000_000
"""As integers below 2⁵³ they are exact for the first two years of a machine's clock."""
INSTANTS_A_TURN = 1_000
"""A turn of more events goes on in the next, which then begins behind it."""
INSTANTS_A_MS = INSTANTS_PER_S // 1_000


def first_of_turn(clock_s: float, last: int) -> int:
    """The instant before the first event of a turn that begins now; that of the last event so far was `last`."""
    return max(ceil(clock_s * (INSTANTS_PER_S // INSTANTS_A_TURN)), last // INSTANTS_A_TURN + 1) * INSTANTS_A_TURN


def turn_ends_s(at_s: float) -> float:
    """The last instant of the turn that has this one."""
    return (round(at_s * INSTANTS_PER_S) // INSTANTS_A_TURN * INSTANTS_A_TURN + INSTANTS_A_TURN - 1) / INSTANTS_PER_S


def turn_ms(at_s: float) -> int:
    """Its turn by the clock of a ledger."""
    return round(at_s * INSTANTS_PER_S) // INSTANTS_A_MS
