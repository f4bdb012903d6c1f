"""One request from its first byte to its last, top to bottom.

    who asks → may it ask for that → what does it ask for, until when → admitted, or refused with numbers → relayed

`serve` reads in that order. What may hold anything (a place in the queue, a reservation, an engine connection) is held by
the block `async with runner.admit(call)`, so every way out of it, an exception included, gives it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headworks.core import effects, events
from headworks.core.policy import ClassPolicy, Policy
from headworks.core.types import Decision, Execution, Request, RequestKey, Usage
from headworks.engines.base import Engine
from headworks.gateway import reply
from headworks.gateway.audience import Audience
from headworks.gateway.deadlines import Deadlines, stamp
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Fault, Limits, Parsed
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.keys import Denied, Identity, Keys
from headworks.gateway.models import Models
from headworks.gateway.relay import EventRate, Relay
from headworks.gateway.runner import Runner, Ticket

DIALECTS: dict[str, Callable[[bytes, Limits], Parsed | Fault]] = {
    chat.ROUTE.path: chat.parse,
    completions.ROUTE.path: completions.parse,
}
MODELS_PATH = "/v1/models"
METHODS: dict[str, tuple[str, ...]] = {**dict.fromkeys(DIALECTS, ("POST",)), MODELS_PATH: ("GET", "HEAD")}
ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
"""What a client may call its request; anything else is replaced by an id of ours."""


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
        ids = _ids(exchange.headers, own_id)
        identity = self._keys.identify(exchange.headers.get(b"authorization"), exchange.peer, exchange.received_s)
        if isinstance(identity, Denied):
            self._fail(exchange, identity.reason, ids, retry_after_s=identity.retry_after_s)
        elif exchange.path == MODELS_PATH:
            exchange.respond(200, [reply.JSON, (b"X-Request-Id", ids.request_id)], self._models.listing(identity.tenant))
        else:
            service_class = self._service_class(exchange, identity.tenant)
            if service_class is None:
                wanted = exchange.headers.get(b"headworks-class", b"").decode("latin-1")
                self._fail(exchange, "forbidden", ids, subject=f"Your tenant may not use the class {wanted[:64]!r}.")
            else:
                await self._serve_call(exchange, own_id, ids, identity, service_class)

    def _service_class(self, exchange: Exchange, tenant: str) -> ClassPolicy | None:
        """The class the request names, if its tenant may, or the tenant's own (K43)."""
        policy = self._policy.tenants[tenant]
        wanted = exchange.headers.get(b"headworks-class")
        if wanted is None:
            return self._policy.classes[policy.service_class]
        name = wanted.decode("latin-1")
        return self._policy.classes.get(name) if name in policy.classes else None

    async def _serve_call(
        self, exchange: Exchange, own_id: str, ids: reply.Ids, identity: Identity, service_class: ClassPolicy
    ) -> None:
        body = exchange.body_ready
        if body is None:
            body = await exchange.read_body()
        self._limits.context_tokens = self._models.context_tokens
        parsed = DIALECTS[exchange.path](body, self._limits)
        if isinstance(parsed, Fault):
            self._fault(exchange, parsed, ids)
            return
        times = stamp(exchange.headers, service_class, parsed.stream, exchange.received_s)
        pool = self._models.pool(parsed.model, identity.tenant)
        if isinstance(times, Fault):
            self._fault(exchange, times, ids)
        elif pool is None:
            self._fail(exchange, "model_not_found", ids, subject=parsed.model[:128])
        else:
            request = _request(exchange, own_id, ids, identity, service_class.name, pool, parsed, times)
            call = ProxyCall(self, exchange, request, parsed, ids, service_class.idle_s)
            async with self._runner.admit(call) as ticket:
                await ticket.ended()

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

    def refuse(self, exchange: Exchange, decision: Decision, ids: reply.Ids) -> None:
        allowance = self.allowance(decision.key.tenant)
        exchange.respond(*reply.refusal(decision, ids, wall_s=self._wall_s(), allowance=allowance))

    def allowance(self, tenant: str) -> reply.Allowance | None:
        """The tenant's limits and what is left of them now (K24)."""
        policy = self._policy.tenants.get(tenant)
        if policy is None or (policy.active_tokens_max is None and policy.active_requests_max is None):
            return None
        tokens, requests = self._runner.gate.tenant_use(tenant)
        return reply.Allowance(
            policy.active_requests_max,
            max(0, (policy.active_requests_max or 0) - requests),
            0.0,
            policy.active_tokens_max,
            max(0, (policy.active_tokens_max or 0) - tokens),
            0.0,
        )

    # an execution

    def relay(self, call: ProxyCall, engine: Engine, run: effects.Run) -> Follow:
        """Send one execution of this call and relay what comes back."""
        audience = call.audience
        if audience is None:
            audience = call.audience = Audience(self._wall_s)
            headers = reply.own_headers(call.ids, run.decision.waited_s, self.allowance(call.request.key.tenant))
            audience.join(call.exchange, call.ids, headers, call.ended)
        rate = self._rates.get(engine.replica)
        if rate is None:
            rate = self._rates[engine.replica] = EventRate()
        follow = Follow(self._runner, run.execution, call.idle_s)
        parsed = call.parsed
        relay = Relay(
            audience,
            follow,
            stream=parsed.stream,
            samples=parsed.samples,
            include_usage_asked=parsed.include_usage_asked,
            rate=rate,
            is_busy=engine.is_busy,
            clock_s=self._clock_s,
        )
        follow.relay = relay
        body = parsed.build(run.output_tokens_max, None)
        relay.attach(engine.run(run.execution.id, call.exchange.path, body, run.send_before_s, relay))
        return follow


@dataclass(slots=True)
class ProxyCall:
    """One request at the public port, as the runner sees it (`runner.Call`)."""

    proxy: Proxy
    exchange: Exchange
    request: Request
    parsed: Parsed
    ids: reply.Ids
    idle_s: float
    ticket: Ticket | None = None
    audience: Audience | None = None

    def send(self, engine: Engine, run: effects.Run) -> Follow:
        return self.proxy.relay(self, engine, run)

    def refuse(self, decision: Decision) -> None:
        if not self.exchange.started:
            self.proxy.refuse(self.exchange, decision, self.ids)

    def enter(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def watch(self, leave: Callable[[], None]) -> None:
        self.exchange.on_gone(leave)

    def ended(self) -> None:
        """The audience has given its client the whole answer."""
        if self.ticket is not None:
            self.ticket.end()


class Follow:
    """Tells the gate what the relay of one execution hears (`relay.Follower`, `runner.Attempt`)."""

    __slots__ = ("_began", "_execution", "_idle_s", "_outcome", "_runner", "relay")

    def __init__(self, runner: Runner, execution: Execution, idle_s: float) -> None:
        self._runner = runner
        self._execution = execution
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
            self._runner.feed(events.EngineSilent(self._execution.id, now_s - relay.last_s))

    def first_byte(self) -> None:
        self._began = True
        self._runner.feed(events.FirstByte(self._execution.id))

    def progressed(self, output_tokens: int) -> None:
        self._runner.feed(events.Progressed(self._execution.id, output_tokens))

    def slow(self, paused: bool) -> None:
        self._runner.feed(events.ClientSlow(self._execution.id, paused))

    def stopped(self, usage: Usage, failed: bool) -> None:
        self._outcome = "failed" if failed else "completed"
        self._runner.feed(events.Stopped(self._execution.id, usage, failed))

    def lost(self, cause: str) -> None:
        self._outcome = "lost"
        self._runner.feed(events.EngineLost(self._execution.id, cause))

    def not_sent(self, reason: str) -> None:
        self._outcome = ""
        self._runner.feed(events.NotSent(self._execution.id, reason))

    def busy(self) -> None:
        self._outcome = "refused"
        self._runner.feed(events.NotSent(self._execution.id, "busy"))

    def closed(self) -> None:
        self._runner.feed(events.EngineClosed(self._execution.id))

    def over(self) -> None:
        self._runner.ended(self._execution, self._outcome)


def _ids(headers: Mapping[bytes, bytes], own_id: str) -> reply.Ids:
    """The client's own names where they are fit to be repeated, else ours."""
    own = own_id.encode()
    request_id, key = headers.get(b"x-request-id"), headers.get(b"idempotency-key")
    return reply.Ids(
        own if request_id is None or ID.fullmatch(request_id) is None else request_id,
        own if key is None or ID.fullmatch(key) is None else key,
    )


def _request(
    exchange: Exchange,
    own_id: str,
    ids: reply.Ids,
    identity: Identity,
    service_class: str,
    pool: str,
    parsed: Parsed,
    times: Deadlines,
) -> Request:
    headers = exchange.headers
    key_given = ids.idempotency_key is headers.get(b"idempotency-key")
    retries = headers.get(b"x-stainless-retry-count", b"0")
    return Request(
        own_id,
        RequestKey(identity.tenant, ids.idempotency_key.decode("latin-1")),
        key_given,
        parsed.fingerprint() if key_given else "",
        identity.client,
        service_class,
        parsed.model,
        pool,
        parsed.prompt_bytes,
        parsed.prompt_tokens,
        parsed.output_tokens_max,
        parsed.samples,
        parsed.stream,
        "",
        None,
        int(retries) if retries.isdigit() and len(retries) < 4 else 0,
        exchange.received_s,
        times.start_by_s,
        times.finish_by_s,
    )
