"""What stock clients are tried in front of: a gateway before a fake engine always, and before a real vLLM where one is named.

`HEADWORKS_VLLM_URL` names one that serves the model `tiny` to nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from app_scene import Scene, fake_engine, scene

TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "models": ["other"]}}
UNHURRIED = {"interactive": {"slo": {"ttft_s": 40}, "queue": {"wait_s_max": 40}}}
REAL = os.environ.get("HEADWORKS_VLLM_URL", "")


class RealEngine:
    """A server that runs already, in the place of a fake one."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def start(self) -> str:
        return self.url

    async def stop(self) -> None: ...

    def held(self) -> dict[str, Any]:
        return {}  # what is inside, only the gateway's own evidence can tell


def fake_scene(**sections: Any) -> AbstractAsyncContextManager[Scene]:
    return scene(fake_engine(), **{"tenants": TENANTS, **sections})


def real_scene(url: str = REAL, **sections: Any) -> AbstractAsyncContextManager[Scene]:
    return scene(RealEngine(url), **{"tenants": TENANTS, "classes": UNHURRIED, **sections})  # type: ignore[arg-type]


Front = Callable[..., AbstractAsyncContextManager[Scene]]
ENGINES = [
    pytest.param(fake_scene, id="fake"),
    pytest.param(real_scene, id="real", marks=pytest.mark.skipif(not REAL, reason="HEADWORKS_VLLM_URL is not set")),
]
on_engines = pytest.mark.parametrize("front", ENGINES)
