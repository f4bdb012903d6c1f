"""KEDA's external scaler, `external` and `external-push` (`externalscaler.proto`): demanded capacity of a pool (F4).

The ScaledObject's metadata names what it is about:

    pool            needed where there are several
    targetTokens    what one replica should carry; absent: 0.8 of the tokens that one holds, if one is there
    activeTokens    above so much demand the pool is active, and woken from none; absent: 0

Demanded is what is reserved, what waits, and what was refused for want of an engine, so a pool at nothing is woken by the first
request that it could not serve. It is pushed when it changes, not at KEDA's next poll.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc

from headworks.gateway.envoy.protos import made

NAME = "externalscaler.ExternalScaler"
LOOK_S = 0.25
"""How often an open stream looks whether the pool has become active, or has come to rest."""
FRESH_S = 0.05
"""One look serves all that ask within so long: what it costs does not grow with how often anybody asks."""
STREAMS_MAX = 64
"""Open at once; KEDA has one for each ScaledObject."""
TARGET_RATIO = 0.8
"""Of what a replica holds: above it more are wanted."""
POOL, TARGET, ACTIVE = "pool", "targetTokens", "activeTokens"
_MESSAGES = made(
    "externalscaler",
    {
        "ScaledObjectRef": (("name", 1, "string"), ("namespace", 2, "string"), ("scalerMetadata", 3, "Entry[]")),
        "Entry": (("key", 1, "string"), ("value", 2, "string")),  # a map is that on the wire
        "IsActiveResponse": (("result", 1, "bool"),),
        "GetMetricSpecResponse": (("metricSpecs", 1, "MetricSpec[]"),),
        "MetricSpec": (("metricName", 1, "string"), ("targetSize", 2, "int64"), ("targetSizeFloat", 3, "double")),
        "GetMetricsRequest": (("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, "string")),
        "GetMetricsResponse": (("metricValues", 1, "MetricValue[]"),),
        "MetricValue": (("metricName", 1, "string"), ("metricValue", 2, "int64"), ("metricValueFloat", 3, "double")),
    },
)
ScaledObjectRef, GetMetricsRequest = _MESSAGES["ScaledObjectRef"], _MESSAGES["GetMetricsRequest"]
IsActiveResponse, GetMetricsResponse = _MESSAGES["IsActiveResponse"], _MESSAGES["GetMetricsResponse"]
GetMetricSpecResponse = _MESSAGES["GetMetricSpecResponse"]
Context = Any
"""`grpc.aio.ServicerContext`."""


class Scaler:
    """Answers KEDA's questions. `look`: what is shown of each pool (`core/snapshot.py`)."""

    def __init__(self, look: Callable[[], Mapping[str, dict[str, Any]]], clock_s: Callable[[], float]) -> None:
        self._look = look
        self._clock_s = clock_s
        self._looked_s = -math.inf
        self._seen: Mapping[str, dict[str, Any]] = {}
        self._streams = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the gRPC server."""

        def answers(method: Any, request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )

        pushes = grpc.unary_stream_rpc_method_handler(
            self._push_active,
            request_deserializer=ScaledObjectRef.FromString,
            response_serializer=IsActiveResponse.SerializeToString,
        )
        methods = {
            "IsActive": answers(self._is_active, ScaledObjectRef, IsActiveResponse),
            "StreamIsActive": pushes,
            "GetMetricSpec": answers(self._spec, ScaledObjectRef, GetMetricSpecResponse),
            "GetMetrics": answers(self._metrics, GetMetricsRequest, GetMetricsResponse),
        }
        return grpc.method_handlers_generic_handler(NAME, methods)

    async def _is_active(self, scaled: Any, context: Context) -> Any:
        return IsActiveResponse(result=await self._active(scaled, context))

    async def _push_active(self, scaled: Any, context: Context) -> AsyncIterator[Any]:
        """Once now, and whenever it changes."""
        if self._streams >= STREAMS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS_MAX} streams are open: ask IsActive instead")
        self._streams += 1
        told: bool | None = None
        try:
            while True:
                active = await self._active(scaled, context, LOOK_S)
                if active is not told:
                    told = active
                    yield IsActiveResponse(result=active)
                await asyncio.sleep(LOOK_S)
        finally:
            self._streams -= 1

    async def _spec(self, scaled: Any, context: Context) -> Any:
        name, pool = await self._asked(scaled, context)
        target = await self._number(scaled, TARGET, _target_tokens(pool), context)
        spec = {"metricName": _metric(name), "targetSize": math.ceil(target), "targetSizeFloat": target}
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Context) -> Any:
        name, pool = await self._asked(request.scaledObjectRef, context)
        demanded = _demanded_tokens(pool)
        value = {"metricName": _metric(name), "metricValue": math.ceil(demanded), "metricValueFloat": demanded}
        return GetMetricsResponse(metricValues=[value])

    async def _active(self, scaled: Any, context: Context, fresh_s: float = FRESH_S) -> bool:
        _, pool = await self._asked(scaled, context, fresh_s)
        return _demanded_tokens(pool) > await self._number(scaled, ACTIVE, 0.0, context)

    def _pools(self, fresh_s: float) -> Mapping[str, dict[str, Any]]:
        """As they are, or were so long ago."""
        now_s = self._clock_s()
        if now_s >= self._looked_s + fresh_s:
            self._seen, self._looked_s = self._look(), now_s
        return self._seen

    async def _asked(self, scaled: Any, context: Context, fresh_s: float = FRESH_S) -> tuple[str, dict[str, Any]]:
        pools, named = self._pools(fresh_s), _metadata(scaled).get(POOL)
        if named is None and len(pools) == 1:
            named = next(iter(pools))
        if named is None or named not in pools:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"metadata.{POOL} must be one of {', '.join(pools)}")
        assert named is not None, "it has been refused"
        return named, pools[named]

    async def _number(self, scaled: Any, key: str, otherwise: float | None, context: Context) -> float:
        text = _metadata(scaled).get(key)
        if text is None and otherwise is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"no replica has said what it holds: state metadata.{key}")
        try:
            value = otherwise if text is None and otherwise is not None else float(text or "")
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0 and (key != TARGET or value > 0)):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"metadata.{key} must be a number of tokens")
        return value


def _metadata(scaled: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in scaled.scalerMetadata}


def _metric(pool: str) -> str:
    return f"headworks_demanded_tokens_{pool}"


def _demanded_tokens(pool: dict[str, Any]) -> float:
    return float(pool["pressure"]["demanded_tokens"])


def _target_tokens(pool: dict[str, Any]) -> float | None:
    """Of one replica, if any has said what it holds."""
    limit, there = pool["tokens_limit"], [one for one in pool["replicas"].values() if one["tokens_limit"]]
    return TARGET_RATIO * limit / len(there) if limit and there else None
