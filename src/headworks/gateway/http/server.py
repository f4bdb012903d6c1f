"""The public port: listens, counts places, runs one coroutine a request, and ends in order.

It frames bytes and knows nothing of what they ask for. What a path takes (`allowed`), what an error looks like
(`error_body`) and what to do (`handler`) are given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headworks.gateway.http.answer import DateLine, last_answer
from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.connection import Connection
from headworks.gateway.http.deadlines import DeadlineWheel
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.limits import EdgeLimits, HttpError
from headworks.gateway.http.listen import Listener, listen_on_path, listen_on_port
from headworks.gateway.http.running import Running

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
ErrorBody = Callable[[int, str, str], tuple[list[tuple[bytes, bytes]], bytes]]


@dataclass(slots=True)
class Counters:
    """Since the start. Keys are few: statuses the port answers by itself, and reasons why a connection ended."""

    accepted: int = 0
    refused: int = 0
    requests: int = 0
    faults: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)

    def count_error(self, status: int) -> None:
        self.errors[status] = self.errors.get(status, 0) + 1


class Server:
    """Construct, `start` once or on several addresses, and `close`."""

    def __init__(
        self,
        handler: Handler,
        limits: EdgeLimits,
        *,
        allowed: Callable[[str], tuple[str, ...] | None],
        clock_s: Callable[[], float],
        error_body: ErrorBody,
        on_fault: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._handler = handler
        self._on_fault = on_fault
        self.limits = limits
        self.allowed = allowed
        """The methods a path takes, or None for a path that is not there. It always says the same of the same path."""
        self.clock_s = clock_s
        self.error_body = error_body
        self.date = DateLine()
        self.wheel = DeadlineWheel(clock_s)
        self.counters = Counters()
        self.connections: set[Connection] = set()
        self.exchanges: set[Exchange] = set()
        """Those whose handler still runs, answered or not. Bounded by `connections_max` and the handlers' own ends."""
        self.draining = False
        self.unread_bytes = 0
        self._unread_paused: dict[Connection, None] = {}
        self._read_on: Connection | None = None
        self._places: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self._paths: list[Path] = []
        self._emptied = asyncio.Event()

    async def start(
        self, host: str | None = None, port: int = 0, *, path: str | None = None, sock: socket.socket | None = None
    ) -> list[Any]:
        """Listens on a host's addresses (`*`: all, IPv4 and IPv6), on a Unix path, or on a socket that is bound already.

        Returns what `getsockname` says of each.
        """
        if path is not None:
            sockets = [listen_on_path(path)]
            self._paths.append(Path(path))
        elif sock is not None:
            sockets = [sock]
        else:
            sockets = await listen_on_port(host or "127.0.0.1", port)
        for listening in sockets:
            self._listeners.append(Listener(listening, self.limits.backlog, lambda peer: Connection(self, peer)))
        return [listening.getsockname() for listening in sockets]

    def stop_accepting(self) -> None:
        """Closes the listening sockets and idle connections; what is being served is answered, and then closed."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._listeners.clear()
        self._paths.clear()
        for connection in list(self.connections):
            connection.drain()

    async def close(self, deadline_s: float) -> None:
        """Stops accepting, waits for what runs, and after `deadline_s` cuts off the rest."""
        self.stop_accepting()
        if self.connections or self.exchanges:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), deadline_s)
        for connection in list(self.connections):
            connection.abort("deadline")
        for exchange in list(self.exchanges):
            if exchange.task is not None:
                exchange.task.cancel()
        if self.connections or self.exchanges:
            self._emptied.clear()
            await self._emptied.wait()
        self.wheel.close()

    # What connections ask.

    def admit(self, connection: Connection) -> HttpError | None:
        """A place for a new connection, or why there is none."""
        peer = connection.peer
        held = self._places.get(peer, 0)
        if len(self.connections) >= self.limits.connections_max or (
            held >= self.limits.connections_per_address_max and peer != "unix"
        ):
            self.counters.refused += 1
            return HttpError(503, "gateway_overloaded", "There are too many connections; close idle ones or come back later.")
        self.counters.accepted += 1
        self.connections.add(connection)
        self._places[peer] = held + 1
        return None

    def forget(self, connection: Connection, reason: str) -> None:
        """Its place is free again."""
        self.connections.discard(connection)
        self.counters.closed[reason] = self.counters.closed.get(reason, 0) + 1
        held = self._places[connection.peer] - 1
        if held:
            self._places[connection.peer] = held
        else:
            del self._places[connection.peer]
        self._check_emptied()

    def count_unread(self, connection: Connection, body: RequestBody) -> None:
        """Books what a body holds. Past the bound, connections are not read until others' bodies are taken or given up.

        One is always read on, or bodies that are all half here would wait for each other until their deadlines. So the
        bound is `unread_bytes_max`, one body more, and for each connection the one read that met the bound.
        """
        held_bytes = body.held_bytes()
        self.unread_bytes += held_bytes - body.booked_bytes
        body.booked = True
        body.booked_bytes = held_bytes
        if self.unread_bytes > self.limits.unread_bytes_max and not body.complete:
            if self._read_on is None:
                self._read_on = connection
            if self._read_on is not connection:
                self._unread_paused[connection] = None
                connection.pause_reading()

    def release_unread(self, connection: Connection, body: RequestBody) -> None:
        """A body was taken by its handler or given up."""
        self.unread_bytes -= body.booked_bytes
        body.booked = False
        body.booked_bytes = 0
        if connection in self._unread_paused:
            self._resume(connection)  # An end of stream must be seen, whatever became of the body.
        if self._read_on is connection:
            self._read_on = next(iter(self._unread_paused), None)
            if self._read_on is not None:
                self._resume(self._read_on)
        if self.unread_bytes <= self.limits.unread_bytes_max:
            self._read_on = None
            for paused in list(self._unread_paused):
                self._resume(paused)

    def _resume(self, connection: Connection) -> None:
        del self._unread_paused[connection]
        connection.resume_reading()

    def launch(self, exchange: Exchange) -> None:
        """Runs the handler, as far as it comes at once; the server holds it until it ends."""
        self.exchanges.add(exchange)
        exchange.task = task = Running(self._handler(exchange), exchange, self._handler_ended)
        task.step()

    def answer_error(self, exchange: Exchange, error: HttpError) -> None:
        self.counters.count_error(error.status)
        exchange.fail(error, *self.error_body(error.status, error.code, error.message))

    def last_answer(self, error: HttpError) -> bytes:
        """To bytes that are no request, or for which there is no place: the connection ends with it."""
        self.counters.count_error(error.status)
        headers, body = self.error_body(error.status, error.code, error.message)
        return last_answer(error.status, [*headers, *error.headers], self.date, body, self.clock_s())

    def count_fault(self, fault: BaseException) -> None:
        self.counters.faults += 1
        if self._on_fault is not None:
            self._on_fault(fault)

    def _handler_ended(self, exchange: Exchange, error: BaseException | None) -> None:
        """Sees to it that no exchange is left without an end, whatever became of its handler."""
        if error is not None or not exchange.finished:
            self._end(exchange, error)
        exchange.task = None  # They hold each other.
        self.exchanges.discard(exchange)
        if not self.exchanges:
            self._check_emptied()

    def _end(self, exchange: Exchange, error: BaseException | None) -> None:
        try:
            if isinstance(error, HttpError):
                self.answer_error(exchange, error)
            elif error is None and not exchange.gone:
                raise RuntimeError("the handler ended without an end to its answer")
            elif isinstance(error, Exception):
                raise error
        except Exception as fault:
            self.count_fault(fault)
            if not exchange.finished:
                self.answer_error(exchange, HttpError(500, "internal_error", "The gateway failed to answer; it is our fault."))
        finally:
            exchange.abort()

    def _check_emptied(self) -> None:
        if not self.connections and not self.exchanges:
            self._emptied.set()
