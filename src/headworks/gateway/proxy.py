"""One request from its first byte to its last, top to bottom.

    who asks → may it ask for that → what does it ask for, until when → admitted, or refused with numbers → relayed

`serve` reads in that order. What may hold anything (a place in the queue, a reservation, an engine connection) is held
from `runner.admit(call)` on, and `call.leave()` at the end gives it back on every way out, an exception included.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

from headworks.core import effects, events
from headworks.core.policy import INFINITE_S, ClassPolicy, Policy
from headworks.core.types import Decision, Execution, Request, RequestKey, Usage
from headworks.engines.base import Engine
from headworks.gateway import reply
from headworks.gateway.audience import Audience
from headworks.gateway.deadlines import DEADLINE, READ_TIMEOUT, stamp
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Fault, Limits, Parsed
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.keys import Denied, Identity, Keys
from headworks.gateway.models import Models
from headworks.gateway.relay import EventRate, Relay
from headworks.gateway.runner import Runner

DIALECTS: dict[str, Callable[[bytes, Limits], Parsed | Fault]] = {
    chat.ROUTE.path: chat.parse,
    completions.ROUTE.path: completions.parse,
}
MODELS_PATH = "/v1/models"
METHODS: dict[str, tuple[str, ...]] = {**dict.fromkeys(DIALECTS, ("POST",)), MODELS_PATH: ("GET", "HEAD")}
RETRY_COUNT = b"x-stainless-retry-count"
ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
"""What a client may call its request; anything else is replaced by an id of ours."""
NO_LIMIT = (None, 0, 0.0)


class Proxy:
    """Serves the public port."""

    def __init__(
        self,
        runner: Runner,
        policy: Policy,
        keys: Keys,
        models: Models,
        *,
        boot: str,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._policy = policy
        self._keys = keys
        self._models = models
        self._prefix = f"req_{boot[:12]}"
        self._count = 0
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._rates: dict[str, EventRate] = {}
        self._limits = Limits()

    def change_policy(self, policy: Policy, keys: Keys) -> None:
        """Requests that arrive from now on are read by the new policy and known by these keys."""
        self._policy = policy
        self._keys = keys

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request, whatever becomes of it."""
        self._count += 1
        own_id = f"{self._prefix}{self._count:x}"
        headers = exchange.headers
        ids = _ids(headers, own_id)
        identity = self._keys.identify(headers.get(b"authorization"), exchange.peer, exchange.received_s)
        if isinstance(identity, Denied):
            self._fail(exchange, identity.reason, ids, retry_after_s=identity.retry_after_s)
            return
        if exchange.path == MODELS_PATH:
            exchange.respond(200, [reply.JSON, (b"X-Request-Id", ids.request_id)], self._models.listing(identity.tenant))
            return
        service_class = self._service_class(headers, identity.tenant)
        if service_class is None:
            wanted = headers.get(b"headworks-class", b"").decode("latin-1")
            self._fail(exchange, "forbidden", ids, subject=f"Your tenant may not use the class {wanted[:64]!r}.")
            return
        body = exchange.body_ready
        if body is None:
            body = await exchange.read_body()
        call = self._call(exchange, body, own_id, ids, identity, service_class)
        if call is None:
            return
        self._runner.admit(call)
        try:
            exchange.on_gone(call.leave)
            if not call.over:
                call.waiter = asyncio.get_running_loop().create_future()
                await call.waiter
        finally:
            call.leave()

    def _service_class(self, headers: Mapping[bytes, bytes], tenant: str) -> ClassPolicy | None:
        """The class the request names, if its tenant may, or the tenant's own (K43)."""
        policy = self._policy.tenants[tenant]
        wanted = headers.get(b"headworks-class")
        if wanted is None:
            return self._policy.classes[policy.service_class]
        name = wanted.decode("latin-1")
        return self._policy.classes.get(name) if name in policy.classes else None

    def _call(
        self,
        exchange: Exchange,
        body: bytes,
        own_id: str,
        ids: reply.Ids,
        identity: Identity,
        service_class: ClassPolicy,
    ) -> ProxyCall | None:
        """What is asked for, until when and of which pool; None if that was answered with what is wrong with it."""
        self._limits.context_tokens = self._models.context_tokens
        parsed = DIALECTS[exchange.path](body, self._limits)
        if isinstance(parsed, Fault):
            self._fault(exchange, parsed, ids)
            return None
        headers, received_s = exchange.headers, exchange.received_s
        start_by_s, finish_by_s = INFINITE_S, received_s + service_class.gateway_s
        if DEADLINE in headers or READ_TIMEOUT in headers:
            times = stamp(headers, service_class, parsed.stream, received_s)
            if isinstance(times, Fault):
                self._fault(exchange, times, ids)
                return None
            start_by_s, finish_by_s = times.start_by_s, times.finish_by_s
        tenant = identity.tenant
        pool = self._models.pool(parsed.model, tenant)
        if pool is None:
            self._fail(exchange, "model_not_found", ids, subject=parsed.model[:128])
            return None
        key_given = ids.idempotency_key is headers.get(b"idempotency-key")
        request = Request(
            own_id,
            RequestKey(tenant, ids.idempotency_key.decode("latin-1") if key_given else own_id),
            key_given,
            parsed.fingerprint() if key_given else "",
            identity.client,
            service_class.name,
            parsed.model,
            pool,
            parsed.prompt_bytes,
            parsed.prompt_tokens,
            parsed.output_tokens_max,
            parsed.samples,
            parsed.stream,
            "",
            None,
            _retries(headers[RETRY_COUNT]) if RETRY_COUNT in headers else 0,
            received_s,
            start_by_s,
            finish_by_s,
        )
        return ProxyCall(self, self._runner, exchange, request, parsed, ids, service_class.idle_s)

    # answers of our own

    def _fault(self, exchange: Exchange, fault: Fault, ids: reply.Ids) -> None:
        self._fail(exchange, fault.reason, ids, subject=fault.subject, param=fault.param)

    def _fail(
        self,
        exchange: Exchange,
        code: str,
        ids: reply.Ids,
        *,
        subject: str = "",
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        answer = reply.failure(code, ids, wall_s=self._wall_s(), subject=subject, param=param, retry_after_s=retry_after_s)
        exchange.respond(*answer)

    def refuse(self, exchange: Exchange, decision: Decision, ids: reply.Ids, client: str) -> None:
        allowance = self.allowance(decision.key.tenant, client)
        exchange.respond(*reply.refusal(decision, ids, wall_s=self._wall_s(), allowance=allowance))

    def allowance(self, tenant: str, client: str) -> reply.Allowance | None:
        """The limits of tenant and client, and what is left of them now (K24)."""
        policy = self._policy.tenants.get(tenant)
        if policy is None:
            return None
        holds = policy.active_tokens_max is not None or policy.active_requests_max is not None
        if not holds and policy.rate is None and policy.client_rate is None:
            return None
        requests, tokens = self._runner.gate.left(tenant, client, self._clock_s())
        return reply.Allowance(*(requests or NO_LIMIT), *(tokens or NO_LIMIT))

    # an execution

    def relay(self, call: ProxyCall, engine: Engine, run: effects.Run) -> Follow:
        """Send one execution of this call and relay what comes back."""
        audience = call.audience
        if audience is None:
            audience = call.audience = Audience(self._wall_s)
            allowance = self.allowance(call.request.key.tenant, call.request.client)
            lines = reply.own_lines(call.ids, run.decision.waited_s, allowance)
            audience.join(call.exchange, call.ids, lines, call.ended)
        rate = self._rates.get(engine.replica)
        if rate is None:
            rate = self._rates[engine.replica] = EventRate()
        follow = Follow(self._runner, run.execution, call.idle_s)
        parsed = call.parsed
        relay = follow.relay = Relay(
            audience,
            follow,
            parsed.stream,
            parsed.samples,
            parsed.include_usage_asked,
            rate,
            engine.is_busy,
            self._clock_s,
        )
        body = parsed.build(run.output_tokens_max, None)
        relay.attach(engine.run(run.execution.id, call.exchange.path, body, run.send_before_s, relay))
        return follow


class ProxyCall:
    """One request at the public port, as the runner sees it (`runner.Call`)."""

    __slots__ = ("_proxy", "_runner", "audience", "exchange", "idle_s", "ids", "over", "parsed", "request", "waiter")

    def __init__(
        self,
        proxy: Proxy,
        runner: Runner,
        exchange: Exchange,
        request: Request,
        parsed: Parsed,
        ids: reply.Ids,
        idle_s: float,
    ) -> None:
        self._proxy = proxy
        self._runner = runner
        self.exchange = exchange
        self.request = request
        self.parsed = parsed
        self.ids = ids
        self.idle_s = idle_s
        self.over = False
        self.waiter: asyncio.Future[None] | None = None
        """Whoever waits for the end."""
        self.audience: Audience | None = None

    def send(self, engine: Engine, run: effects.Run) -> Follow:
        return self._proxy.relay(self, engine, run)

    def refuse(self, decision: Decision) -> None:
        if not self.exchange.started:
            self._proxy.refuse(self.exchange, decision, self.ids, self.request.client)

    def ended(self) -> None:
        """The client has had its whole answer, whatever it was."""
        self.over = True
        self._runner.forget(self.request.id)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def leave(self) -> None:
        """The client has gone, if it is not over yet."""
        if not self.over:
            self.ended()
            self._runner.feed(events.ClientGone(self.request.id))


class Follow:
    """Tells the gate what the relay of one execution hears (`follower.Follower`, `runner.Attempt`)."""

    __slots__ = ("_began", "_execution", "_feed", "_id", "_idle_s", "_outcome", "_runner", "relay")

    def __init__(self, runner: Runner, execution: Execution, idle_s: float) -> None:
        self._runner = runner
        self._feed = runner.feed
        self._execution = execution
        self._id = execution.id
        self._idle_s = idle_s
        self._began = False
        self._outcome = "cancelled"
        """For the metric of attempts: what it is unless something else is heard of it."""
        self.relay: Relay | None = None

    def abort(self, reason: str) -> None:
        if self.relay is not None:
            self.relay.abort(reason)

    def check_silence(self, now_s: float) -> None:
        """Tell when the engine has said nothing for longer than the class allows, while we were reading."""
        relay = self.relay
        if self._began and relay is not None and not relay.paused and now_s - relay.last_s > self._idle_s:
            self._feed(events.EngineSilent(self._id, now_s - relay.last_s))

    def first_byte(self) -> None:
        self._began = True
        self._feed(events.FirstByte(self._id))

    def progressed(self, output_tokens: int) -> None:
        self._feed(events.Progressed(self._id, output_tokens))

    def slow(self, paused: bool) -> None:
        self._feed(events.ClientSlow(self._id, paused))

    def stopped(self, usage: Usage, failed: bool) -> None:
        self._outcome = "failed" if failed else "completed"
        self._feed(events.Stopped(self._id, usage, failed))

    def lost(self, cause: str) -> None:
        self._outcome = "lost"
        self._feed(events.EngineLost(self._id, cause))

    def not_sent(self, reason: str) -> None:
        self._outcome = ""
        self._feed(events.NotSent(self._id, reason))

    def busy(self) -> None:
        self._outcome = "refused"
        self._feed(events.NotSent(self._id, "busy"))

    def closed(self) -> None:
        self._feed(events.EngineClosed(self._id))

    def over(self) -> None:
        self.relay = None  # they point at each other: parted here, both are gone without the garbage collector
        self._runner.ended(self._execution, self._outcome)


def _ids(headers: Mapping[bytes, bytes], own_id: str) -> reply.Ids:
    """The client's own names where they are fit to be repeated, else ours."""
    own = own_id.encode()
    request_id, key = headers.get(b"x-request-id"), headers.get(b"idempotency-key")
    return reply.Ids(
        own if request_id is None or ID.fullmatch(request_id) is None else request_id,
        own if key is None or ID.fullmatch(key) is None else key,
    )


def _retries(text: bytes) -> int:
    """How often an SDK says it has tried before."""
    return int(text) if text.isdigit() and len(text) < 4 else 0
