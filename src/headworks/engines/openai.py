"""Any server that speaks OpenAI's API and shows nothing else. Only what it says in band is known (E1).

So a gone client's answer is read to its end: closing the connection would prove nothing, and what runs on would be
charged for ever. Its memory is never guessed; its context is what it states or what the operator configured.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.types import Capacity, ReplicaSample
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look_at_models
from headworks.engines.outbox import Outbox
from headworks.engines.pool import Pool

CONTEXT_TOKENS_UNKNOWN = 4_096
"""Assumed where neither the engine nor the operator says: small enough for every model served today."""


class OpenAIEngine:
    """One OpenAI-compatible server (`engines.base.Engine`)."""

    usage_each = False
    evidence: tuple[str, ...] = ("E1",)

    def __init__(
        self,
        replica: str,
        url: str,
        clock_s: Callable[[], float],
        api_key: str | None = None,
        context_tokens: int | None = None,
        *,
        ca: str | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.replica = replica
        self._endpoint = Endpoint(url, api_key, ca)
        self._clock_s = clock_s
        self._context_tokens = context_tokens
        self._executions = Pool(self._endpoint, clock_s, outbox=outbox, read_on_after_abort=True)
        self.run = self._executions.run
        """See `Engine.run`."""
        self._looks = Pool(self._endpoint, clock_s)

    def is_busy(self, status: int, payload: bytes) -> bool:
        """Never: what an unknown server has started when it says 429 or 503 is its own affair."""
        return False

    async def describe(self) -> Capacity:
        """Names from `/v1/models`, and the context where it is stated."""
        models = await look_at_models(self._looks)
        contexts = [model.max_model_len for model in models if model.max_model_len]
        notes = ["only in-band evidence (E1): the answer of a client that left is read to its end"]
        context_tokens = self._context_tokens or min(contexts, default=0)
        if not context_tokens:
            context_tokens = CONTEXT_TOKENS_UNKNOWN
            notes.append(f"the context is not stated; {CONTEXT_TOKENS_UNKNOWN} tokens are assumed until it is configured")
        return Capacity(
            replica=self.replica,
            engine="openai",
            version="unknown",
            incarnation="unknown",
            context_tokens=context_tokens,
            kv_tokens=None,
            block_tokens=1,
            running_max=None,
            evidence=self.evidence,
            models=tuple(model.id for model in models),
            notes=tuple(notes),
        )

    async def sample(self) -> ReplicaSample:
        """Whether it answers at all, which `/v1/models` tells. It has no gauges: every one of them is None."""
        begun_s = self._clock_s()
        await look_at_models(self._looks)
        return ReplicaSample(
            replica=self.replica,
            incarnation="unknown",
            begun_s=begun_s,
            ended_s=self._clock_s(),
            iterations=None,
            running=None,
            waiting=None,
            kv_used_ratio=None,
            compute_used_ratio=None,
            preemptions_total=None,
        )

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._executions.close()
        await self._looks.close()
