"""At the door: a client that has used up what it may is refused before its request is read (`core/turning_away.py`).

Who asks and for which class is known from the head. Of the body a glance tells the model and what is asked for at most, so
that the refusal is written down as any other; whoever is wrong in it is told so once there is something to be had again.
The answer is given where the request came in: nobody waits for anything, and nothing is held.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headworks.core.instants import INSTANTS_PER_S
from headworks.core.policy import INFINITE_S
from headworks.core.types import Request
from headworks.gateway import reply
from headworks.gateway.admit import SESSION
from headworks.gateway.allowances import Allowances
from headworks.gateway.asked import RETRY_COUNT, Asker, key_of, retries
from headworks.gateway.deadlines import DEADLINE, READ_TIMEOUT, stamp
from headworks.gateway.dialects.base import Fault
from headworks.gateway.every_answer import Ids
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.models import Models
from headworks.gateway.peek import peek
from headworks.gateway.runner import Runner


class Door:
    """One gateway's."""

    def __init__(
        self,
        runner: Runner,
        models: Models,
        allowances: Allowances,
        note: Callable[[Exchange, Request, Ids], bytes],
        wall_s: Callable[[], float],
    ) -> None:
        """`note` writes down what else a request is called."""
        self._runner = runner
        self._models = models
        self._allowances = allowances
        self._note = note
        self._wall_s = wall_s
        self.shut = runner.gate.shut
        """Clients that are to be asked about here."""

    def turn_away(self, exchange: Exchange, route: str, body: bytes, own_id: str, ids: Ids, asker: Asker) -> bool:
        """Refuse it, if it can be refused as it is. False: it is to be read."""
        request = self._glance(exchange, route, body, own_id, ids, asker)
        if request is None:
            return False
        runner, turns = self._runner, self._runner.turns
        turns.begin_turn()
        turns.instant += 1
        turned = runner.gate.turn_away(request, turns.instant / INSTANTS_PER_S)
        if turned is None:
            return False
        self._note(exchange, request, ids)
        runner.recorder.record(turned)
        allowance = self._allowances.of(request.key.tenant, request.client)
        exchange.respond(*reply.refusal(turned.decision, ids, wall_s=self._wall_s(), allowance=allowance))
        return True

    def _glance(self, exchange: Exchange, route: str, body: bytes, own_id: str, ids: Ids, asker: Asker) -> Request | None:
        """What can be told of it without reading it; None where that does not do."""
        headers, identity, service_class = exchange.headers, asker.identity, asker.service_class
        if SESSION in headers or ids.idempotency_key is headers.get(b"idempotency-key"):
            return None
        try:
            seen = peek(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # whoever reads it says what is wrong
            return None
        pool = self._models.pool(seen.model, identity)
        if pool is None or self._models.missing(pool, seen.model, route):
            return None
        received_s = exchange.received_s
        start_by_s, finish_by_s = INFINITE_S, received_s + service_class.gateway_s
        if DEADLINE in headers or READ_TIMEOUT in headers:
            times = stamp(headers, service_class, seen.stream, received_s)
            if isinstance(times, Fault):
                return None
            start_by_s, finish_by_s = times.start_by_s, times.finish_by_s
        return Request(
            own_id,
            key_of(identity.tenant, own_id),
            False,
            "",
            identity.client,
            service_class.name,
            seen.model,
            pool,
            len(body),
            None,
            _first(seen.max_tokens, seen.max_completion_tokens, seen.max_output_tokens),
            seen.n or 1,
            seen.stream,
            (),
            None,
            retries(headers[RETRY_COUNT]) if RETRY_COUNT in headers else 0,
            received_s,
            start_by_s,
            finish_by_s,
            route=route,
        )


def _first(*given: int | None) -> int | None:
    """Whatever its dialect calls it."""
    for tokens in given:
        if tokens is not None:
            return tokens
    return None
