"""Where Envoy and KEDA ask: opened if `server.grpc` names an address, and then only is gRPC loaded (H5, decision 51)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headworks.config.settings import Settings
from headworks.gateway import clock
from headworks.gateway.http import Server
from headworks.gateway.http.server import Handler

if TYPE_CHECKING:
    from headworks.gateway.envoy.port import Port

MISSING = "server.grpc: it needs gRPC and Envoy's messages; install headworks[envoy], or leave it out"
CUT_S = 1.0


class GrpcError(Exception):
    """The port is configured and cannot be opened. The text says why."""


class GrpcPort:
    """The port, and the edge behind its endpoint picker."""

    def __init__(self, port: Port, edge: Server) -> None:
        self._port = port
        self.edge = edge

    async def start(self) -> None:
        """Raises `GrpcError`."""
        try:
            await self._port.start()
        except OSError as error:
            raise GrpcError(f"server.grpc: {error}") from None

    async def stop(self) -> None:
        """What is still being answered is cut off, as on the public port."""
        await self.edge.close(CUT_S)
        await self._port.stop()

    @property
    def number(self) -> int:
        """Of the port, once it listens."""
        return self._port.port


def opened(
    settings: Settings, handler: Handler, edge: Callable[[Handler], Server], obstacles: Callable[[], list[str]]
) -> GrpcPort | None:
    """By the settings; None: nobody asks over gRPC. Raises `GrpcError` where the extra is missing."""
    if settings.grpc is None:
        return None
    try:
        from headworks.gateway.envoy import picker
        from headworks.gateway.envoy.port import Port
    except ImportError as error:
        raise GrpcError(f"{MISSING} ({error})") from None
    picks = picker.Picker(handler, edge, clock.now_s)
    port = Port(settings.grpc, settings.tls, {picker.NAME: picks}, obstacles, is_shared=settings.workers > 1)
    return GrpcPort(port, picks.server)
