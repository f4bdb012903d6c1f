"""One request from its first byte to its last, top to bottom.

    who asks → may it ask for that → what does it ask for, until when → admitted, or refused with numbers → relayed

`serve` reads in that order. What may hold anything (a place in the queue, a reservation, an engine connection) is held
from `runner.admit(call)` on, and `call.leave()` gives it back on every way out but the answer, an exception included.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from headworks.core import effects, events
from headworks.core.policy import INFINITE_S, ClassPolicy, Policy
from headworks.core.types import Decision, Leeway, Request, Usage
from headworks.engines.base import Engine
from headworks.gateway import asked, each_usage, reply
from headworks.gateway.admit import SESSION, Admit, is_admit, session_of
from headworks.gateway.allowances import Allowances
from headworks.gateway.answers import Answers
from headworks.gateway.asked import REQUEST_ID, RETRY_COUNT, Asker, class_asked, class_refused, credential, ids_of, retries
from headworks.gateway.assembly import Assembled
from headworks.gateway.audience import Audience
from headworks.gateway.counting import Counting
from headworks.gateway.deadlines import DEADLINE, READ_TIMEOUT, stamp
from headworks.gateway.dialects import variants
from headworks.gateway.dialects.base import NO_PARTS, Fault, Limits, Parsed
from headworks.gateway.dialects.parts import sized
from headworks.gateway.dialects.table import DIALECTS, Dialect
from headworks.gateway.door import Door
from headworks.gateway.equals import Equals, Name
from headworks.gateway.error_shapes import OPENAI
from headworks.gateway.event_rate import EventRate
from headworks.gateway.every_answer import Ids, own_lines
from headworks.gateway.follow import EqualFollow, Follow, SharedFollow
from headworks.gateway.guard import Guard
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.keys import Denied, Identity, Keys
from headworks.gateway.mirrors import Mirrors
from headworks.gateway.models import Models
from headworks.gateway.outlet import Outlet
from headworks.gateway.own import Own
from headworks.gateway.prefixes import prefix_of
from headworks.gateway.relay import Relay
from headworks.gateway.routes import MODELS_PATH
from headworks.gateway.runner import Runner
from headworks.gateway.tracing import Tracing


class Proxy:
    """Serves the public port."""

    def __init__(
        self,
        runner: Runner,
        policy: Policy,
        keys: Keys,
        models: Models,
        answers: Answers,
        own: Own,
        tracing: Tracing,
        equals: Equals,
        guard: Guard,
        limits: Limits,
        *,
        boot: str,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
        counting: Counting | None = None,
    ) -> None:
        self._runner, self._guard, self._policy, self._limits = runner, guard, policy, limits
        self._keys, self._models, self._own, self._tracing = keys, models, own, tracing
        self.answers, self.equals, self.counting = answers, equals, counting  # None: no model has a tokenizer
        self.mirrors: Mirrors | None = None  # None: nothing is copied
        self._prefix, self._count = f"req_{boot[:12]}", 0
        self._clock_s, self.wall_s = clock_s, wall_s
        self._rates: dict[str, EventRate] = {}
        self.allowances = Allowances(runner.gate, policy, clock_s)
        self.admit = Admit(runner, models, self, clock_s, wall_s)
        self._door = Door(runner, models, self.allowances, self._note, wall_s)

    def change_policy(self, policy: Policy, limits: Limits) -> None:
        """Requests that arrive from now on are read by the new policy."""
        self._policy, self._limits = policy, limits
        self.allowances.change_policy(policy)

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer one request, whatever becomes of it. What it has to wait for, and only that, is in the coroutine."""
        self._count += 1
        own_id = self._prefix + hex(self._count)[2:]  # compiled, a format of a number is a call of `str.format`
        headers = exchange.headers
        dialect = DIALECTS.get(exchange.path)
        ids = ids_of(headers, own_id, OPENAI if dialect is None else dialect.shape)
        if dialect is None:
            identity = self._identified(exchange, ids)
            return None if identity is None else self._serve_plain(exchange, identity, own_id, ids)
        asker = exchange.head.known
        if type(asker) is not Asker or asker.keys_number != self._keys.number:
            asker = self._asker(exchange, ids)
            if asker is None:
                return None
            exchange.head.known = asker if asker.identity.until_s == INFINITE_S else None
        if (overload := self._guard.refuses(asker.service_class)) is not None:
            exchange.respond(*reply.shed(overload, ids, self.wall_s()))
            return None
        if exchange.body_ready is None:
            return self._read_and_ask(exchange, dialect, own_id, ids, asker)
        return self._ask(exchange, dialect, exchange.body_ready, own_id, ids, asker)

    def _identified(self, exchange: Exchange, ids: Ids) -> Identity | None:
        """Whose key it is; None if that was answered."""
        identity = self._keys.identify(credential(exchange.headers), exchange.peer, exchange.received_s)
        if not isinstance(identity, Denied):
            return identity
        exchange.respond(*reply.denied(identity, ids, self.wall_s()))
        return None

    def _asker(self, exchange: Exchange, ids: Ids) -> Asker | None:
        """Who asks, and for which class; None if that was answered."""
        identity = self._identified(exchange, ids)
        if identity is None:
            return None
        service_class = class_asked(exchange.headers, identity, self._policy)
        if service_class is None:
            self.fail(exchange, "forbidden", ids, subject=class_refused(exchange.headers))
            return None
        return Asker(identity, service_class, self._keys.number)

    async def _read_and_ask(self, exchange: Exchange, dialect: Dialect, own_id: str, ids: Ids, asker: Asker) -> None:
        body = await exchange.read_body()
        counted = self._ask(exchange, dialect, body, own_id, ids, asker)
        if counted is not None:
            await counted

    def _ask(
        self, exchange: Exchange, dialect: Dialect, body: bytes, own_id: str, ids: Ids, asker: Asker
    ) -> Coroutine[Any, Any, None] | None:
        """Hand over what its body asks for; first its prompt is counted, where a tokenizer says how long that is."""
        door, client = self._door, asker.identity.client
        if client in door.shut and self.mirrors is None and door.turn_away(exchange, dialect.path, body, own_id, ids, asker):
            return None
        call = self.call(exchange, dialect, body, own_id, ids, asker.identity, asker.service_class)
        if call is None:
            return None
        call.trace_lines = self._note(exchange, call.request, ids)
        if self.counting is not None and call.parsed.prompt_tokens is None:
            return self._count_and_admit(call, self.counting)
        self._admit(call)
        return None

    def _note(self, exchange: Exchange, request: Request, ids: Ids) -> bytes:
        """Its client's own name for it, and its trace; gives the lines of that for the head of what its engine is sent."""
        headers = exchange.headers
        if REQUEST_ID in headers and ids.request_id is headers[REQUEST_ID]:
            self._own.note(request.id, request.key, ids.request_id.decode("latin-1"))
        return self._tracing.lines(headers, request) if self._tracing.concerns(headers) else b""

    async def _count_and_admit(self, call: ProxyCall, counting: Counting) -> None:
        call.request = await counting.sized(call.request, call.parsed, self._policy, self._runner.gate.unsure)
        self._admit(call)

    def _admit(self, call: ProxyCall) -> None:
        self._runner.admit(call)
        call.exchange.promise(call.leave)
        if self.mirrors is not None:
            self.mirrors.saw(call)

    async def _serve_plain(self, exchange: Exchange, identity: Identity, own_id: str, ids: Ids) -> None:
        """What asks for no work now."""
        if is_admit(exchange.path):
            asked = self.service_class(exchange.headers, identity) if exchange.method == "POST" else None
            if asked is not None and (overload := self._guard.refuses(asked)) is not None:
                exchange.respond(*reply.shed(overload, ids, self.wall_s()))
            else:
                await self.admit.serve(exchange, identity, own_id, ids)
        elif exchange.path == MODELS_PATH:
            listing = self._models.listing(identity, b"anthropic-version" in exchange.headers)
            exchange.respond(200, [reply.JSON, (b"X-Request-Id", ids.request_id)], listing)
        else:
            await self._own.serve(exchange, identity.tenant, ids)

    def service_class(self, headers: Mapping[bytes, bytes], identity: Identity) -> ClassPolicy | None:
        """The class a request names or means, if it may."""
        return class_asked(headers, identity, self._policy)

    def call(
        self,
        exchange: Exchange,
        dialect: Dialect,
        body: bytes,
        own_id: str,
        ids: Ids,
        identity: Identity,
        service_class: ClassPolicy,
    ) -> ProxyCall | None:
        """What is asked for, until when and of which pool; None if that was answered with what is wrong with it."""
        self._limits.context_tokens = self._models.context_tokens
        parsed = dialect.parse(body, self._limits)
        if not isinstance(parsed, Parsed):
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
        pool = self._pool(exchange, dialect, parsed.model, ids, identity)
        if pool is None:
            return None
        key_given = ids.idempotency_key is headers.get(b"idempotency-key")
        equal = self.equals.name(tenant, parsed, service_class) if service_class.on_pressure else None
        request = Request(
            own_id,
            asked.key_of(tenant, ids.idempotency_key.decode("latin-1") if key_given else own_id),
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
            prefix_of(parsed, self._policy.pools[pool]),
            session_of(headers[SESSION], identity) if SESSION in headers else None,
            retries(headers[RETRY_COUNT]) if RETRY_COUNT in headers else 0,
            received_s,
            start_by_s,
            finish_by_s,
            parsed.output_tokens_min,
            parsed.assembles,
            parsed.prompt_kind,
            self._leeway(parsed, service_class, equal) if service_class.on_pressure else None,
            dialect.path,
        )
        if parsed.parts is not NO_PARTS:
            request = sized(request, parsed)
        return ProxyCall(self, self._runner, exchange, dialect, request, parsed, ids, service_class.idle_s, equal)

    def _pool(self, exchange: Exchange, dialect: Dialect, model: str, ids: Ids, identity: Identity) -> str | None:
        """Whose engines serve that model, if they have the route; None if that was answered with what is wrong with it."""
        pool = self._models.pool(model, identity)
        if pool is None:
            self.fail(exchange, "model_not_found", ids, subject=model[:128])
        elif missing := self._models.missing(pool, model, dialect.path):
            self.fail(exchange, "not_found", ids, subject=missing)
            return None
        return pool

    def _leeway(self, parsed: Parsed, service_class: ClassPolicy, equal: Name | None) -> Leeway | None:
        strips = any(step.action == "strip_few_shot" for step in service_class.on_pressure)
        return variants.leeway(parsed, strips, self.equals.find(equal) is not None)

    # answers of our own

    def _fault(self, exchange: Exchange, fault: Fault, ids: Ids) -> None:
        self.fail(exchange, fault.reason, ids, subject=fault.subject, param=fault.param)

    def fail(self, exchange: Exchange, code: str, ids: Ids, *, subject: str = "", param: str | None = None) -> None:
        exchange.respond(*reply.failure(code, ids, wall_s=self.wall_s(), subject=subject, param=param))

    def refuse(self, call: ProxyCall, decision: Decision, usage: Usage | None) -> None:
        allowance = self.allowances.of(decision.key.tenant, call.request.client)
        call.exchange.respond(*reply.refusal(decision, call.ids, wall_s=self.wall_s(), allowance=allowance, usage=usage))

    # an execution

    def relay(self, call: ProxyCall, engine: Engine, run: effects.Run) -> Follow:
        """Send one execution of this call and relay what comes back."""
        execution, exchange, shared = run.execution, call.exchange, run.others is not None
        audience = call.audience
        keeps = call.equal is not None and run.variant is None and not shared
        if audience is None:
            own = self.equals.open(self.wall_s) if keeps else Audience(self.wall_s)
            audience = self.answers.open(execution.id) if shared else own
        elif shared:
            self.answers.send_on(execution.id, audience)
        audience.degraded = run.decision.degraded
        self.seat(call, audience, run.decision)
        rate = self._rates.get(engine.replica) or self._rates.setdefault(engine.replica, EventRate())
        if shared:
            follow: Follow = SharedFollow(self._runner, execution, call.idle_s, self.answers)
        elif keeps and call.equal is not None:
            follow = EqualFollow(self._runner, execution, call.idle_s, self.equals, call.equal, audience)
        else:
            follow = Follow(self._runner, execution, call.idle_s)
        parsed = call.parsed if run.variant is None else variants.applied(call.parsed, run.variant)
        outlet: Outlet = audience
        each = each_usage.speech(engine, parsed) if parsed.samples > 1 else None
        assembled = not parsed.stream and (run.watch_tokens > 0 or (each is not None and parsed.assembles))
        speech = call.dialect.speech or each
        if assembled:  # only of a stream can be seen how far it is, and what each of several answers used
            outlet = Assembled(audience) if speech is None else speech.assembled(audience)
        relay = follow.relay = Relay(
            outlet,
            follow,
            parsed.stream or assembled,
            parsed.samples,
            parsed.include_usage_asked or assembled,
            rate,
            engine.is_busy,
            self._clock_s,
            watch_tokens=run.watch_tokens,
            prompt_tokens=run.decision.work.prefill_tokens * parsed.prompts // parsed.samples,
            speech=speech,
        )
        body = parsed.build(run.output_tokens_max, None, assembled)
        try:
            way = engine.run(execution.id, exchange.path, body, run.send_before_s, relay, call.trace_lines, exchange.carrier)
            relay.attach(way)
        except Exception as fault:  # nobody can say whether any of it went out
            self._runner.faulted(run, fault)
            relay.on_lost("a fault of ours")
        return follow

    def seat(self, call: ProxyCall, audience: Audience, decision: Decision) -> bool:
        """Let a call's client have this answer. False: what there was of it is not kept."""
        lines = own_lines(call.ids, decision.waited_s, self.allowances.of(call.request.key.tenant, call.request.client))
        degraded = decision.degraded or audience.degraded
        if degraded:
            lines += b"Headworks-Degraded: %b\r\n" % degraded.encode("latin-1", "replace")
        if call.audience is audience:  # since an earlier attempt
            audience.tell(call.exchange, lines)
        elif not audience.join(call.exchange, call.ids, lines, call.ended, call.parsed.let_go if call.parsed.stream else None):
            return False
        call.audience = audience
        return True


class ProxyCall:
    """One request at the public port, as the runner sees it (`runner.Call`)."""

    # fmt: off
    __slots__ = ("_proxy", "_runner", "audience", "dialect", "equal", "exchange", "idle_s", "ids", "over", "parsed", "request",
                 "trace_lines")
    # fmt: on

    def __init__(
        self,
        proxy: Proxy,
        runner: Runner,
        exchange: Exchange,
        dialect: Dialect,
        request: Request,
        parsed: Parsed,
        ids: Ids,
        idle_s: float,
        equal: Name | None = None,
    ) -> None:
        self._proxy, self._runner = proxy, runner
        self.exchange, self.dialect = exchange, dialect
        self.request, self.parsed, self.ids = request, parsed, ids
        self.idle_s, self.over, self.equal = idle_s, False, equal  # `equal`: what an equal request of its tenant is called
        self.audience: Audience | None = None
        self.trace_lines = b""  # for the head of what its engine is sent

    def send(self, engine: Engine, run: effects.Run) -> Follow:
        try:
            return self._proxy.relay(self, engine, run)
        except Exception:
            self._proxy.answers.over(run.execution.id, False)
            raise

    def join(self, execution: str, decision: Decision) -> bool:
        audience = self.audience or self._proxy.answers.find(execution)
        return audience is not None and self._proxy.seat(self, audience, decision)

    def serve(self, decision: Decision) -> None:
        """With the answer to an equal request, unless that had to make room a moment ago."""
        kept = self._proxy.equals.find(self.equal)
        if kept is None or not self._proxy.seat(self, kept, decision):
            self.exchange.respond(*reply.failure("queue_timeout", self.ids, wall_s=self._proxy.wall_s()))
            self.ended()

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None:
        if not self.exchange.started:
            self._proxy.refuse(self, decision, usage)

    def ended(self) -> None:
        """The client has had its whole answer, whatever it was."""
        self.over = True
        self._runner.forget(self.request.id)

    def fail(self, fault: Exception) -> None:
        """The port answers for us, and what was held is given back."""
        self.leave()
        self.exchange.fail(fault)

    def leave(self) -> None:
        """The client has gone, if it is not over yet."""
        if not self.over:
            self.ended()
            self._runner.feed(events.ClientGone(self.request.id))
