"""What a gateway cannot vouch for: executions that may have ended in the engine without its knowing (E3b).

A heartbeat vouches for everything that runs here, save these. They are found among the few that are unread or asked about,
so that a heartbeat costs no more where 10,000 streams stand open.
"""

from __future__ import annotations

from headworks.core.desk import Desk
from headworks.core.life import LEAVING, SETTLING


def unvouched(desk: Desk, since_s: float) -> tuple[str, ...]:
    """Unread at some moment since then, or their end is on the way to the ledger."""
    unread, runs = desk.unread, desk.runs
    for name in [name for name, life in unread.items() if life.unread_until_s <= since_s or name not in runs]:
        del unread[name]
    ending = (
        name for name, life in desk.asks.items() if life.state in (LEAVING, SETTLING) and life.ask is not None and name in runs
    )
    return tuple(dict.fromkeys((*unread, *ending)))
