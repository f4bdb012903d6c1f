"""Whom the ledger is asked for, once it has said that it has no room or that it is another's turn.

A gateway sees its own places, not what others over the same ledger have taken. So its queue finds room where there is none, and
whatever it asks then is asked in vain. From the first time that it is sent back so, until 32 grants in a row say that there is
room after all, the pool is *short*, and each ask has a cause:

    the ledger names a flow whose turn it is: woken, or in the answer to one that has to wait for it   → that flow, once
    something was granted; or ended here, and the ledger has never told whose turn it is              → whoever is first, once
    a flow has not asked for 20 ms, and its mark counts for 50 (`core/fair.py`)                        → that flow, once

of the third kind eight at a time. A second grant in a row has two asked for, so that room for many is taken quickly. So a
release costs about one ask that is granted and one that is not, however many gateways there are and however many wait.
"""

from __future__ import annotations

Flow = tuple[str, str]

PAUSED_MAX = 8
"""With so many flows sent back by the ledger the rest need not ask: those whose turn it is first have asked."""
TRIED_S = 0.25
"""Without an answer by then others of the flow are asked for all the same."""
YIELD_S = 0.02
"""A flow that takes turns asks again after this time, while its mark still counts."""
NAMED_MAX = 64
"""Flows that are to be asked for at once, at most: each is one of this gateway's, and the ledger has told so."""
IN_A_ROW = 32
"""Grants, and nothing sent back between them: there is room."""


class Asks:
    """Of one pool."""

    __slots__ = ("_in_a_row", "_spare", "is_short", "is_told", "named", "paused")

    def __init__(self) -> None:
        self.is_short = False
        self.is_told = False
        """The ledger has told whose turn it is without being asked: others share it, and it will again."""
        self.paused: dict[Flow, float] = {}
        """Flows that were sent back, or are asked for while they are tried, and when to ask for them again."""
        self.named: dict[Flow, int] = {}
        """Flows whose turn it is, by the ledger's word, and how often they may ask."""
        self._spare = 0
        """So many more may ask, whoever is first."""
        self._in_a_row = 0

    def look(self, now_s: float) -> None:
        """A round begins: who was paused, and need be no more."""
        if self.paused:
            self.paused = {flow: at_s for flow, at_s in self.paused.items() if at_s > now_s}

    def anybody(self) -> bool:
        """Whether one that is not named may ask."""
        return not self.is_short or self._spare > 0 or len(self.paused) < PAUSED_MAX

    def may(self, flow: Flow) -> bool:
        """Whether one of this flow may be asked for in this round."""
        if not self.is_short:
            return flow not in self.paused
        return flow in self.named or self._spare > 0 or (flow not in self.paused and len(self.paused) < PAUSED_MAX)

    def asked(self, flow: Flow, now_s: float) -> None:
        """One of it is asked for while the pool is short."""
        left = self.named.get(flow)
        if left is not None:
            if left > 1:
                self.named[flow] = left - 1
            else:
                del self.named[flow]
        elif self._spare and (flow in self.paused or len(self.paused) >= PAUSED_MAX):
            self._spare -= 1
        self.paused[flow] = now_s + TRIED_S

    def sent_back(self, flow: Flow, until_s: float, now_s: float, is_short: bool) -> int:
        """Not now. `is_short`: for want of what all share, or of its turn. Returns how many are sent back now."""
        self.look(now_s)
        self.paused[flow] = until_s
        if is_short:
            self.is_short = True
            self._spare = self._in_a_row = 0
        return len(self.paused)

    def granted(self, flow: Flow, waits: bool, now_s: float) -> None:
        """There was room: there may be more. `waits`: more of this flow waits, so its mark was left anew."""
        if waits:
            self.paused[flow] = now_s + YIELD_S
        else:
            self.paused.pop(flow, None)
        self._in_a_row += 1
        self._spare += 1 if self._in_a_row == 1 else 2
        if self._in_a_row >= IN_A_ROW:
            self.is_short = False
            self.freed()

    def settled(self, flow: Flow) -> bool:
        """One of it was answered with something that says nothing about room. Whether others of it were waiting for that."""
        return self.paused.pop(flow, None) is not None

    def freed(self) -> None:
        """Something ended: where the pool is not short, whoever was sent back may ask again. Else the ledger says who."""
        if not self.is_short:
            self.paused.clear()
        elif not self.is_told:
            self._spare += 1

    def any(self) -> None:
        """It is the turn of somebody who does not wait here any more: whoever is first may ask in its place."""
        self._spare += 1

    def name(self, flow: Flow) -> None:
        """It is this flow's turn."""
        if flow in self.named or len(self.named) < NAMED_MAX:
            self.named[flow] = self.named.get(flow, 0) + 1

    def close(self) -> None:
        """Nobody more can start: what was not asked now was for this moment."""
        self.named.clear()
        self._spare = 0
