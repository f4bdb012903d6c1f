"""gRPC's health check (`grpc.health.v1`), which an Envoy or a kubelet asks: the same answers as `/livez` and `/readyz`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from headworks.gateway.envoy.protos import made

NAME = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
LIVENESS = "liveness"
_MESSAGES = made(
    "grpc.health.v1", {"HealthCheckRequest": (("service", 1, "string"),), "HealthCheckResponse": (("status", 1, "int32"),)}
)
Request, Response = _MESSAGES["HealthCheckRequest"], _MESSAGES["HealthCheckResponse"]


class Health:
    """`liveness` while the process answers; `readiness`, each service and the whole while nothing keeps it from taking work."""

    def __init__(self, services: frozenset[str], obstacles: Callable[[], list[str]]) -> None:
        self._names = services | {"", LIVENESS, "readiness"}
        self._obstacles = obstacles

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the gRPC server."""
        check = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=Request.FromString, response_serializer=Response.SerializeToString
        )
        return grpc.method_handlers_generic_handler(NAME, {"Check": check})

    async def _check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        serves = request.service == LIVENESS or not self._obstacles()
        return Response(status=SERVING if serves else NOT_SERVING)
