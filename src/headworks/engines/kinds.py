"""Which adapter drives which kind of engine, by the name that the configuration has for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headworks.engines.base import Engine
from headworks.engines.llamacpp import LlamaCppEngine
from headworks.engines.openai import OpenAIEngine
from headworks.engines.outbox import Outbox
from headworks.engines.sglang import SglangEngine
from headworks.engines.vllm import VllmEngine


class Adapter(Protocol):
    """Makes the adapter of one replica."""

    def __call__(
        self,
        replica: str,
        url: str,
        clock_s: Callable[[], float],
        api_key: str | None = None,
        *,
        ca: str | None = None,
        outbox: Outbox | None = None,
    ) -> Engine:
        """`api_key` is sent to this engine only. `ca`: a file with the authorities that verify it, over https. Executions are
        written through `outbox`."""
        ...


ENGINES: dict[str, Adapter] = {
    "vllm": VllmEngine,
    "sglang": SglangEngine,
    "llamacpp": LlamaCppEngine,
    "openai": OpenAIEngine,
}
