"""Sessions, and asking without running: what `/admit` answers on the public port (B1, B14).

    POST   /admit               the body of a call: what it would be told now, by the code that decides; nothing runs
    POST   /admit/session       {"tokens": 64000, "deadline_s": 600}: a budget held for a series of calls
    DELETE /admit/session/ID    what of it was not spent comes back

A session belongs to the key that opened it: its name in the ledger is made of the credential and of the id, so an id that came
into other hands names nothing there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

import msgspec

from headworks.core import effects, events
from headworks.core.policy import INFINITE_S, ClassPolicy
from headworks.core.reasons import REASONS
from headworks.core.types import Budget, Decision, Request, RequestKey, SessionRecord, Usage
from headworks.gateway import reply
from headworks.gateway.allowances import Allowances
from headworks.gateway.asked import class_refused
from headworks.gateway.dialects import chat, completions, embeddings, responses
from headworks.gateway.dialects.table import DIALECTS, Dialect
from headworks.gateway.every_answer import Ids, own_headers
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.keys import Identity
from headworks.gateway.models import Models
from headworks.gateway.runner import Runner
from headworks.gateway.verdicts import shown

ADMIT_PATH = "/admit"
OPEN_PATH = "/admit/session"
CLOSE_PATH = "/admit/session/"
SESSION = b"headworks-session"
ID = re.compile(r"[0-9a-f]{32}")
ID_LENGTH_MAX = 64
TOKENS_MAX = 1_000_000_000
DEADLINE_S = 3_600.0
"""Of a session that states none."""
DEADLINE_S_MAX = 86_400.0
ASKED_AS = 'A session is asked for as {"tokens": 64000, "deadline_s": 600}'
SEVERAL = 'This key may use several pools of engines: a session needs a "model" of the one it is for.'
NO_PROMISE = "This is what would be decided now. It holds nothing: a request that is sent is decided about anew."


def is_admit(path: str) -> bool:
    """Whether a path is one of these."""
    return path == ADMIT_PATH or path.startswith(OPEN_PATH)


def admit_methods(path: str) -> tuple[str, ...] | None:
    """The methods one of these paths takes; None: it is none of them."""
    if path.startswith(CLOSE_PATH):
        return ("DELETE",)
    return ("POST",) if path in (ADMIT_PATH, OPEN_PATH) else None


def scope_of(identity: Identity, name: str) -> str:
    """A session's scope in the ledger: whoever else names the id names another."""
    return f"session:{identity.tenant}/{identity.client}/{name}"


def session_of(text: bytes, identity: Identity) -> str:
    """The session that a call names, as it is called in the ledger if it is this key's. What is no name of one names none."""
    return scope_of(identity, text.decode("latin-1").strip()[:ID_LENGTH_MAX])


class _Terms(msgspec.Struct, forbid_unknown_fields=True):
    tokens: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=DEADLINE_S_MAX)] = DEADLINE_S
    model: str | None = None


_read_terms = msgspec.json.Decoder(_Terms).decode
_encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    encoding_format: msgspec.Raw = msgspec.Raw()
    dimensions: msgspec.Raw = msgspec.Raw()


def dialect_of(body: bytes) -> Dialect:
    """Whose body this is, where no path says so: by the field that only such a body has."""
    try:
        kind = msgspec.json.decode(body, type=_Kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return DIALECTS[chat.ROUTE.path]  # it says what is wrong with it
    if bytes(kind.input) and not bytes(kind.messages):
        embeds = bytes(kind.encoding_format) or bytes(kind.dimensions)
        return DIALECTS[embeddings.ROUTE.path if embeds else responses.ROUTE.path]
    return DIALECTS[completions.ROUTE.path if bytes(kind.prompt) and not bytes(kind.messages) else chat.ROUTE.path]


class Asked(Protocol):
    """A call that was read."""

    request: Request


class Reader(Protocol):
    """Reads what is asked for, and says what is wrong with it: `proxy.Proxy`."""

    allowances: Allowances

    def service_class(self, headers: Mapping[bytes, bytes], identity: Identity) -> ClassPolicy | None: ...

    def call(
        self,
        exchange: Exchange,
        dialect: Dialect,
        body: bytes,
        own_id: str,
        ids: Ids,
        identity: Identity,
        service_class: ClassPolicy,
    ) -> Asked | None: ...

    def fail(self, exchange: Exchange, code: str, ids: Ids, *, subject: str = "", param: str | None = None) -> None: ...


class Admit:
    """Opens and closes sessions, and shows decisions."""

    def __init__(
        self, runner: Runner, models: Models, reader: Reader, clock_s: Callable[[], float], wall_s: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._models = models
        self._reader = reader
        self._clock_s = clock_s
        self._wall_s = wall_s

    async def serve(self, exchange: Exchange, identity: Identity, own_id: str, ids: Ids) -> None:
        """The whole answer."""
        if exchange.path.startswith(CLOSE_PATH):
            await self._close(exchange, own_id, identity, ids)
            return
        service_class = self._reader.service_class(exchange.headers, identity)
        if service_class is None:
            self._reader.fail(exchange, "forbidden", ids, subject=class_refused(exchange.headers))
            return
        body = await exchange.read_body()
        if exchange.path == ADMIT_PATH:
            call = self._reader.call(exchange, dialect_of(body), body, own_id, ids, identity, service_class)
            if call is not None:
                self._consider(exchange, call.request, ids)
            return
        request = self._opening(exchange, body, own_id, identity, service_class.name, ids)
        if request is not None:
            await self._open(exchange, request, ids)

    def _consider(self, exchange: Exchange, request: Request, ids: Ids) -> None:
        """What this request would be told, with nothing charged, queued or written down."""
        decision = self._runner.gate.consider(request, self._clock_s())
        allowance = self._reader.allowances.of(decision.key.tenant, request.client)
        headers = [*own_headers(ids, decision.forecast.wait_s or 0.0, allowance), reply.JSON]
        exchange.respond(200, headers, _encode(considered(decision)))

    def _opening(
        self, exchange: Exchange, body: bytes, own_id: str, identity: Identity, service_class: str, ids: Ids
    ) -> Request | None:
        """A session as the gate is asked for it; None if that was answered with what is wrong with it."""
        try:
            terms = _read_terms(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._reader.fail(exchange, "invalid_request", ids, subject=f"{ASKED_AS}: {error}.")
            return None
        pools = self._models.pools(identity)
        pool = self._models.pool(terms.model, identity) if terms.model is not None else next(iter(pools), None)
        if pool is None:
            self._reader.fail(exchange, "model_not_found", ids, subject=(terms.model or "")[:128])
        elif terms.model is None and len(pools) > 1:
            self._reader.fail(exchange, "invalid_request", ids, subject=SEVERAL, param="model")
        else:
            model, budget = terms.model or pools[pool], Budget(terms.tokens, terms.deadline_s)
            return opening(own_id, identity, service_class, model, pool, budget, exchange.received_s)
        return None

    async def _open(self, exchange: Exchange, request: Request, ids: Ids) -> None:
        """Ask for it, in its tenant's turn, and answer when it is open or refused."""
        call = SessionCall(self, exchange, request, ids)
        self._runner.expect(request.id, call.told)
        self._runner.admit(call)
        try:
            exchange.on_gone(call.leave)
            await call.over
        finally:
            call.leave()

    async def _close(self, exchange: Exchange, name: str, identity: Identity, ids: Ids) -> None:
        """End a session of this key's, and say what came back."""
        session = exchange.path.removeprefix(CLOSE_PATH)
        if ID.fullmatch(session) is None:
            self._missing(exchange, ids)
            return
        told: asyncio.Future[effects.Closed] = asyncio.get_running_loop().create_future()
        self._runner.expect(name, lambda closed: None if told.done() else told.set_result(closed))  # taken out as it is called
        self._runner.feed(events.CloseAsked(name, scope_of(identity, session)))
        try:
            closed = await told
        finally:
            self._runner.expect(name, None)
        if closed.session is not None:
            self.respond(exchange, ids, ended(session, closed.session))
        elif closed.reason:
            self._reader.fail(exchange, closed.reason, ids)
        else:
            self._missing(exchange, ids)

    def _missing(self, exchange: Exchange, ids: Ids) -> None:
        self._reader.fail(exchange, "not_found", ids, subject=exchange.path[:256])

    def respond(self, exchange: Exchange, ids: Ids, body: dict[str, Any]) -> None:
        """An answer of ours in JSON."""
        exchange.respond(200, [reply.JSON, (b"X-Request-Id", ids.request_id)], _encode(body))

    def refuse(self, exchange: Exchange, decision: Decision, client: str, ids: Ids) -> None:
        """A session that is not opened is refused as any request is."""
        allowance = self._reader.allowances.of(decision.key.tenant, client)
        exchange.respond(*reply.refusal(decision, ids, wall_s=self._wall_s(), allowance=allowance))

    def forget(self, name: str) -> None:
        """Nobody waits for its answer any more."""
        self._runner.expect(name, None)
        self._runner.forget(name)

    def left(self, name: str) -> None:
        """Whoever waited for it has gone."""
        self._runner.feed(events.ClientGone(name))


class SessionCall:
    """One session that is asked for, as the runner sees it (`runner.Call`)."""

    def __init__(self, admit: Admit, exchange: Exchange, request: Request, ids: Ids) -> None:
        self._admit = admit
        self._exchange = exchange
        self.request = request
        self._ids = ids
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = False
        """The gate has nothing more to say of it, or has been told that nobody waits."""

    def told(self, effect: effects.Opened | effects.Closed) -> None:
        """It is open."""
        assert effect.session is not None
        self._admit.respond(self._exchange, self._ids, opened(effect.session))
        self.ended()

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None:
        self._admit.refuse(self._exchange, decision, self.request.client, self._ids)

    def ended(self) -> None:
        self._ended = True
        self._admit.forget(self.request.id)
        if not self.over.done():
            self.over.set_result(None)

    def fail(self, fault: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(fault)

    def leave(self) -> None:
        """The client has gone, or was told of a fault of ours: the gate may hold something for it yet."""
        if not self._ended:
            self.ended()
            self._admit.left(self.request.id)

    def send(self, engine: Any, run: effects.Run) -> Any:
        raise AssertionError("an opening runs nowhere")

    def join(self, execution: str, decision: Decision) -> bool:
        return False

    def serve(self, decision: Decision) -> None:
        raise AssertionError("an opening has no answer that is kept")


def opening(
    name: str, identity: Identity, service_class: str, model: str, pool: str, budget: Budget, received_s: float
) -> Request:
    """A session asked for, as the gate takes it, under a name nobody can guess."""
    return Request(
        id=name,
        key=RequestKey(identity.tenant, name),
        key_given=False,
        fingerprint="",
        client=identity.client,
        service_class=service_class,
        model=model,
        pool=pool,
        prompt_bytes=0,
        prompt_tokens=0,
        output_tokens_max=0,
        samples=1,
        stream=False,
        prefix=(),
        session=scope_of(identity, secrets.token_hex(16)),
        retry_count=0,
        arrived_s=received_s,
        start_by_s=INFINITE_S,
        finish_by_s=INFINITE_S,
        opens=budget,
    )


def opened(session: SessionRecord) -> dict[str, Any]:
    """What is said of a session that is open. Seconds are counted from the answer on."""
    name = session.scope.rpartition("/")[2]
    idle_s = session.idle_ms / 1000
    return {"session": name, "tokens": session.tokens, "expires_s": session.left_ms / 1000, "idle_s": idle_s}


def ended(name: str, session: SessionRecord) -> dict[str, Any]:
    """What became of one: tokens = spent + running + returned."""
    return {
        "session": name,
        "tokens": session.tokens,
        "spent_tokens": session.spent_tokens,
        "running_tokens": session.live_tokens,
        "returned_tokens": session.returned_tokens,
        "ended": session.ended,
    }


def considered(decision: Decision) -> dict[str, Any]:
    """A decision that was not made."""
    refused = decision.outcome == "refuse"
    work = decision.work
    return {
        "outcome": decision.outcome,
        "reason": decision.reason or None,
        "status": REASONS[decision.reason].status if refused else 200,
        "retry_after_s": decision.retry_after_s,
        "degraded": decision.degraded or None,
        "verdicts": shown(decision.rows),
        "forecast": decision.forecast,
        "work": {
            "tokens": work.tokens,
            "prompt_tokens": work.prefill_tokens,
            "output_tokens": work.output_tokens,
            "sequences": work.sequences,
            "basis": work.basis,
        },
        "policy_version": decision.policy_version,
        "promise": False,
        "note": NO_PROMISE,
    }
