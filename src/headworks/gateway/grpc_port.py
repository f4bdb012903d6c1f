"""Where Envoy and KEDA ask: opened if `server.grpc` names an address, and then only is gRPC loaded (H5, decision 51)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headworks.config.settings import Settings
from headworks.engines.outbox import Outbox
from headworks.gateway import clock, parts
from headworks.gateway.http import Server
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.models import Models
from headworks.gateway.proxy import Proxy
from headworks.gateway.routes import methods
from headworks.gateway.runner import Runner

if TYPE_CHECKING:
    from headworks.gateway.envoy.port import Port

MISSING = "server.grpc: it needs gRPC and Envoy's messages; install headworks[envoy], or leave it out"
CUT_S = 1.0


class GrpcError(Exception):
    """The port is configured and cannot be opened. The text says why."""


class Behind(Protocol):
    """What is asked there: `app.App`."""

    proxy: Proxy
    runner: Runner
    key_watch: KeyWatch
    models: Models

    def snapshot(self) -> dict[str, Any]: ...

    def obstacles(self) -> list[str]: ...


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
    def open_count(self) -> int:
        """Requests that Envoy has asked about and that are not over."""
        return len(self.edge.exchanges)

    @property
    def number(self) -> int:
        """Of the port, once it listens."""
        return self._port.port


def opened(settings: Settings, behind: Behind, boot: str, outbox: Outbox) -> GrpcPort | None:
    """By the settings; None: nobody asks over gRPC. Raises `GrpcError` where the extra is missing."""
    if settings.grpc is None:
        return None
    try:
        from headworks.gateway.envoy import limits, picker, scaler
        from headworks.gateway.envoy.port import Port, Service
    except ImportError as error:
        raise GrpcError(f"{MISSING} ({error})") from None
    proxy, runner = behind.proxy, behind.runner
    picks = picker.Picker(proxy.serve, lambda handler: parts.unheard_server(handler, settings, methods, outbox), clock.now_s)
    services: dict[str, Service] = {
        picker.NAME: picks,
        limits.NAME: limits.Limits(runner, proxy, behind.key_watch.keys, behind.models, boot, clock.now_s, clock.utc_s),
        scaler.NAME: scaler.Scaler(lambda: behind.snapshot()["pools"], clock.now_s),
    }
    port = Port(settings.grpc, settings.tls, services, behind.obstacles, is_shared=settings.workers > 1)
    return GrpcPort(port, picks.server)
