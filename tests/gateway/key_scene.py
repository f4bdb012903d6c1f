"""A whole gateway with keys in a file, asked at both its ports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from app_scene import ENVIRONMENT, Scene, scene

TENANTS = {
    "acme": {"classes": ["interactive", "batch", "bulk"], "class": "interactive"},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk"},
}
ADMIN = ENVIRONMENT["ADMIN"]


@contextlib.asynccontextmanager
async def keyed(directory: Path, **sections: Any) -> AsyncIterator[Scene]:
    given: dict[str, Any] = {"tenants": TENANTS, "server": {"admin_key": "env:ADMIN"}}
    ledger = {"url": f"sqlite:{directory / 'ledger.db'}"}
    async with scene(pool={"models": ["tiny", "other"]}, ledger=ledger, **(given | sections)) as s:
        yield s


async def at_admin(s: Scene, method: str, path: str, asked: Any = None, key: str | None = ADMIN) -> httpx.Response:
    host, port = s.app.admin_address[:2]
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, verify=False) as client:
        return await client.request(method, path, json=asked, headers=headers)


async def added(s: Scene, **asked: Any) -> Any:
    answer = await at_admin(s, "POST", "/admin/keys", asked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def peppers(directory: Path) -> list[str]:
    """Made with the first key, so a sign that one was issued."""
    return [path.read_text().strip() for path in directory.glob("*.pepper")]


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"
