"""The gRPC port: what it serves, and its life. Imported where `server.grpc` is set, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from headworks.config.address import Address
from headworks.config.settings import TlsFiles
from headworks.gateway.envoy.health import Health

MESSAGE_BYTES_MAX = 16_777_216
"""A whole answer may be said in one message."""
STREAMS_MAX = 10_000
"""Requests at once on one connection of Envoy's."""
CLOSE_S = 1.0


class Service(Protocol):
    """Something that is asked here."""

    def handlers(self) -> grpc.GenericRpcHandler: ...


class Port:
    """One gRPC server, on one address."""

    def __init__(
        self,
        address: Address,
        tls: TlsFiles | None,
        services: Mapping[str, Service],
        obstacles: Callable[[], list[str]],
        *,
        is_shared: bool,
    ) -> None:
        self._listen = str(address)
        self._tls = tls
        self._services: Sequence[Service] = (*services.values(), Health(frozenset(services), obstacles))
        self._options = (
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.so_reuseport", int(is_shared)),
        )
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises `OSError` where that address is not to be had."""
        server = self._server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers([service.handlers() for service in self._services])
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self._listen)
            else:
                self.port = server.add_secure_port(self._listen, _credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._listen}: {error}") from None
        await server.start()

    async def stop(self) -> None:
        """Close; streams that are still open are cut off."""
        if self._server is not None:
            await self._server.stop(CLOSE_S)


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """The certificate of the other ports. A pair that is replaced is shown to whoever comes next, as there."""

    def read() -> grpc.ServerCertificateConfiguration:
        pair = Path(files.key).read_bytes(), Path(files.cert).read_bytes()
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(read(), read)
