"""The public port: listens, counts places, runs one handler a request, and ends in order.

It frames bytes and knows nothing of what they ask for. What a path takes (`allowed`), what an error looks like
(`error_body`) and what to do (`handler`) are given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from headworks.engines.outbox import Outbox
from headworks.gateway.http.answer import CLOSE_LINE, FirstLines, header_lines
from headworks.gateway.http.connection import Connection
from headworks.gateway.http.deadlines import DeadlineWheel
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.limits import EdgeLimits, HttpError
from headworks.gateway.http.listen import LetIn, Listener, listen_on_port

Handler = Callable[[Exchange], Coroutine[Any, Any, None] | None]
"""A call, for what is answered or promised at once, and the rest of it as a coroutine where something has to be waited for."""
ErrorBody = Callable[[int, str, str, str], tuple[list[tuple[bytes, bytes]], bytes]]


@dataclass(slots=True)
class Counters:
    """Since the start. Keys are few: statuses the port answers by itself, and reasons why a connection ended."""

    accepted: int = 0
    refused: int = 0
    requests: int = 0
    faults: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)


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
        let_in: LetIn | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._handler, self._on_fault, self._let_in = handler, on_fault, let_in
        self.limits = limits
        self.outbox = outbox or Outbox()
        self.allowed = allowed
        """The methods a path takes, or None for a path that is not there. It always says the same of the same path."""
        self.clock_s = clock_s
        self._error_body = error_body
        self.first_lines = FirstLines()
        self.wheel = DeadlineWheel(clock_s)
        self.counters = Counters()
        self.connections: set[Connection] = set()
        self.exchanges: set[Exchange] = set()
        """Whose handler still runs, answered or not, or whose answer is promised. Bounded as both are."""
        self.draining = False
        self.unread_bytes = 0
        self._unread: dict[Connection, int] = {}
        """What each connection holds of that, the longest holder first."""
        self._unread_paused: dict[Connection, None] = {}
        self._places: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self._emptied = asyncio.Event()

    async def start(self, host: str | None = None, port: int = 0, *, sock: socket.socket | None = None) -> list[Any]:
        """Listens on a host's addresses (`*`: all, IPv4 and IPv6), or on a socket that is bound already.

        Returns what `getsockname` says of each.
        """
        sockets = [sock] if sock is not None else await listen_on_port(host or "127.0.0.1", port)
        for listening in sockets:
            self._listeners.append(Listener(listening, self.limits, lambda peer: Connection(self, peer), self._let_in))
        return [listening.getsockname() for listening in sockets]

    def stop_listening(self) -> None:
        """Closes the listening sockets; who is connected may go on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def stop_accepting(self) -> None:
        """Closes the listening sockets and idle connections; what is being served is answered, and then closed."""
        self.draining = True
        self.stop_listening()
        for connection in list(self.connections):
            connection.drain()

    async def close(self, deadline_s: float) -> None:
        """Stops accepting, waits for what runs, and after `deadline_s` cuts off the rest."""
        self.stop_accepting()
        self._check_emptied()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), deadline_s)
        for connection in list(self.connections):
            connection.abort("deadline")
        for task in filter(None, [exchange.task for exchange in self.exchanges]):
            task.cancel()
        self._check_emptied()
        await self._emptied.wait()
        self.wheel.close()

    def _check_emptied(self) -> None:
        if self.connections or self.exchanges:
            self._emptied.clear()
        else:
            self._emptied.set()

    # Connections.

    def admit(self, connection: Connection) -> bytes | None:
        """Gives a new connection a place, or says what it is told instead."""
        limits, peer = self.limits, connection.peer
        if self.draining:  # It was accepted in the turn in which the port closed.
            return b""
        held = self._places.get(peer, 0)
        if len(self.connections) >= limits.connections_max or (held >= limits.connections_per_address_max):
            self.counters.refused += 1
            message = "There are too many connections; close idle ones or come back later."
            return self.last_answer(HttpError(503, "gateway_overloaded", message))
        self.counters.accepted += 1
        self.connections.add(connection)
        self._places[peer] = held + 1
        return None

    def forget(self, connection: Connection, reason: str) -> None:
        """Its place is free again, if it had one."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.counters.closed[reason] = self.counters.closed.get(reason, 0) + 1
        self._places[connection.peer] -= 1
        if not self._places[connection.peer]:
            del self._places[connection.peer]
        self._check_emptied()

    def book_unread(self, connection: Connection, held_bytes: int) -> None:
        """Books what a connection holds of a body nobody has read yet; 0: it was taken, or given up.

        Past the bound, connections are not read until others' bodies are out of the way. The longest holder is always
        read on, or bodies that are all half here would wait for each other until their deadlines. So the bound is
        `unread_bytes_max`, one body more, and for each connection the one read that met the bound.
        """
        unread, paused = self._unread, self._unread_paused
        more_bytes = held_bytes - unread.get(connection, 0)
        self.unread_bytes += more_bytes
        if held_bytes:
            unread[connection] = held_bytes
        else:
            unread.pop(connection, None)
        is_over = self.unread_bytes > self.limits.unread_bytes_max
        if more_bytes > 0 and is_over and next(iter(unread)) is not connection:
            paused[connection] = None
            connection.pause_reading()
        elif more_bytes < 0 and paused:
            for going_on in [connection, next(iter(unread), connection)] if is_over else list(paused):
                if going_on in paused:
                    del paused[going_on]
                    going_on.resume_reading()

    # Exchanges.

    def launch(self, exchange: Exchange) -> None:
        """Runs the handler, as far as it comes at once; the server holds the exchange until it ends."""
        self.exchanges.add(exchange)
        coroutine = error = None
        try:
            coroutine = self._handler(exchange)
        except Exception as raised:
            error = raised
        if coroutine is None:
            self.handler_ended(exchange, error)
        else:
            exchange.task = asyncio.get_running_loop().create_task(coroutine)
            exchange.task.add_done_callback(exchange.handler_done)

    def handler_ended(self, exchange: Exchange, error: BaseException | None) -> None:
        """Sees to it that no exchange is left without an end, whatever became of its handler."""
        exchange.task = None  # They hold each other.
        if error is not None or not (exchange.finished or exchange.promised):
            self._settle(exchange, error)
        if exchange.finished or exchange.gone_reason:
            self.exchange_over(exchange)

    def exchange_over(self, exchange: Exchange) -> None:
        """It was answered, or its client left: nothing of it is waited for, unless its handler still runs."""
        if exchange.task is None:
            self.exchanges.discard(exchange)
            if self.draining:
                self._check_emptied()

    def _settle(self, exchange: Exchange, error: BaseException | None) -> None:
        if error is None and not exchange.gone:
            error = RuntimeError("the handler ended without an end to its answer")
        try:
            if isinstance(error, HttpError):
                self.answer_error(exchange, error)
            elif isinstance(error, Exception):
                raise error
        except Exception as fault:
            self.count_fault(fault)
            if not exchange.finished:
                self.answer_error(exchange, HttpError(500, "internal_error", "The gateway failed to answer; it is our fault."))
        finally:
            exchange.abort()

    def answer_error(self, exchange: Exchange, error: HttpError) -> None:
        """Answers with an error if nothing was begun; otherwise there is no second answer, only a broken one."""
        headers, body = self._counted_error(error, exchange.path)
        if exchange.started:
            exchange.abort()
        else:
            exchange.respond(error.status, headers, body)

    def last_answer(self, error: HttpError) -> bytes:
        """To bytes that are no request, or for which there is no place: the connection ends with it."""
        headers, body = self._counted_error(error, "")
        first = self.first_lines.of(error.status, self.clock_s())
        return b"".join((first, header_lines(headers), CLOSE_LINE, b"Content-Length: %d\r\n\r\n" % len(body), body))

    def _counted_error(self, error: HttpError, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        self.counters.errors[error.status] = self.counters.errors.get(error.status, 0) + 1
        headers, body = self._error_body(error.status, error.code, error.message, path)
        return [*headers, *error.headers], body

    def count_fault(self, fault: BaseException) -> None:
        self.counters.faults += 1
        if self._on_fault is not None:
            self._on_fault(fault)
