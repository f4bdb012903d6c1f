"""What the stored keys have to say about a configuration: tenants nobody can ask as, and keys that soon end.

`check` shows it, and `serve` when it starts. The store is only read, and nothing is made there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from headworks.config import build
from headworks.config.checks import NO_KEY
from headworks.config.load import Loaded
from headworks.config.problem import Problem
from headworks.ledgers.base import LedgerError, open_keys
from headworks.ledgers.key_rules import ADMIN, Keyring, KeyStoreError, StoredKey

EXPIRES_SOON_S = 14 * 86_400.0
HOUR_S = 3_600.0
DAY_S = 86_400.0


def key_notes(loaded: Loaded, environment: Mapping[str, str], now_s: float) -> tuple[list[Problem], dict[str, int]]:
    """All warnings of a file in the light of its stored keys, and how many good ones each tenant has."""
    config = loaded.config
    if config is None:
        return list(loaded.warnings), {}
    settings = build.settings(config, environment)
    given = settings.keys_secret
    try:
        keys = open_keys(settings.ledger_url, settings.domain, given.reveal() if given else None)
        if keys is None:
            return list(loaded.warnings), {}
        kept = asyncio.run(_read(keys, now_s))
    except KeyStoreError as error:
        return [*loaded.warnings, Problem(loaded.file, 0, "ledger.url", f"a gateway will not start: {error}")], {}
    except LedgerError as error:
        return [*loaded.warnings, Problem(loaded.file, 0, "ledger.url", f"its stored keys are not known: {error}")], {}
    good = [key for key in kept if key.state(now_s) == "active"]
    counts = Counter(key.tenant for key in good if key.tenant != ADMIN)
    answered = {f"tenants.{tenant}.keys" for tenant in counts}
    warnings = [one for one in loaded.warnings if not (one.text == NO_KEY and one.path in answered)]
    found = [text for key in kept for text in _said_of(key, set(config.tenants), now_s)]
    return [*warnings, *(Problem(loaded.file, 0, "", text) for text in found)], dict(counts)


async def _read(keys: Keyring, now_s: float) -> list[StoredKey]:
    """All of them, and whether they can be used here."""
    try:
        kept = await keys.kept()
        if any(key.state(now_s) == "active" for key in kept):
            await keys.pepper(now_s)
        return kept
    finally:
        await keys.close()


def _said_of(key: StoredKey, tenants: set[str], now_s: float) -> list[str]:
    whose = "the admin port" if key.tenant == ADMIN else f"tenant {key.tenant}"
    if key.state(now_s) != "active":
        return []
    if key.tenant != ADMIN and key.tenant not in tenants:
        return [f"the stored key {key.id} is of {whose}, which is not in this file: it opens nothing"]
    if key.expires_s is not None and key.expires_s - now_s <= EXPIRES_SOON_S:
        return [f"the stored key {key.id} of {whose} expires in {_span(key.expires_s - now_s)}; headworks keys rotate {key.id}"]
    return []


def _span(span_s: float) -> str:
    return f"{span_s / DAY_S:.0f} days" if span_s >= 2 * DAY_S else f"{span_s / HOUR_S:.1f} hours"
