"""Envoy's rate-limit service (`envoy.service.ratelimit.v3`), answered by the gate: for requests that run elsewhere.

The descriptors of one question are one request's, and say together who asks for what:

    authorization, x-api-key   the key it came with: the tenant is whose that is, as on the public port
    model                      needed where the key may use several pools
    class                      as the header Headworks-Class; absent: the tenant's own
    report                     `spent`: it has run, and `hits_addend` is what it took; drawn whatever is left, never refused

`hits_addend` is its tokens, prompt and answer. What would refuse it on the public port makes it OVER_LIMIT: rates, a frozen
tenant, a quota that is used up, a pool that is full or too slow for its class. Its rates are drawn on for good, since nobody
tells how it ends; nothing else is held for it, which is what the endpoint picker is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc

from headworks.core import events
from headworks.core.effects import Judged
from headworks.core.policy import INFINITE_S, ClassPolicy
from headworks.core.types import Decision, Request, RequestKey
from headworks.gateway import reply
from headworks.gateway.allowances import Allowances
from headworks.gateway.asked import class_refused, credential
from headworks.gateway.envoy.messages import OK, OVER_LIMIT, AddedHeader, DescriptorStatus, RateLimitRequest, RateLimitResponse
from headworks.gateway.every_answer import Ids, own_lines, pairs_of
from headworks.gateway.keys import Denied, Identity, Keys
from headworks.gateway.models import Models

NAME = "envoy.service.ratelimit.v3.RateLimitService"
PEER = "envoy"
CLASS, MODEL, REPORT, SPENT = "class", "model", "report", "spent"
NO_MODEL = 'This key may use several pools of engines: the descriptor needs a "model".'
TOKENS_MAX = 1_000_000_000


class Asks(Protocol):
    """The way to the gate: `runner.Runner`."""

    def expect(self, name: str, told: Callable[[Any], object] | None) -> None: ...

    def feed(self, event: events.Event) -> None: ...


class Rules(Protocol):
    """What the public port says of a tenant: `proxy.Proxy`."""

    def service_class(self, headers: Mapping[bytes, bytes], identity: Identity) -> ClassPolicy | None: ...

    @property
    def allowances(self) -> Allowances: ...


class Limits:
    """Answers Envoy's questions about limits."""

    def __init__(
        self,
        asks: Asks,
        rules: Rules,
        keys: Keys,
        models: Models,
        boot: str,
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._asks = asks
        self._rules = rules
        self._keys = keys
        self._models = models
        self._prefix, self._count = f"rls_{boot[:12]}", 0
        self._clock_s = clock_s
        self._wall_s = wall_s

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the gRPC server."""
        asked = grpc.unary_unary_rpc_method_handler(
            self._asked,
            request_deserializer=RateLimitRequest.FromString,
            response_serializer=RateLimitResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(NAME, {"ShouldRateLimit": asked})

    async def _asked(self, question: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        self._count += 1
        own_id = f"{self._prefix}{self._count:x}"
        ids = Ids(own_id.encode(), own_id.encode())
        told = {entry.key: entry.value for one in question.descriptors for entry in one.entries}
        identity = self._identified(told)
        if isinstance(identity, Denied):
            return self._over(question, reply.denied(identity, ids, self._wall_s()))
        request = self._request(told, _tokens(question), own_id, identity)
        if not isinstance(request, Request):
            code, subject = request
            return self._over(question, reply.failure(code, ids, wall_s=self._wall_s(), subject=subject))
        decision = await self._judged(request, told.get(REPORT) == SPENT)
        allowance = self._rules.allowances.of(identity.tenant, identity.client)
        if decision.outcome != "refuse" or told.get(REPORT) == SPENT:
            return _answer(question, OK, own_lines(ids, 0.0, allowance), b"")
        return self._over(question, reply.refusal(decision, ids, wall_s=self._wall_s(), allowance=allowance))

    def _identified(self, told: dict[str, str]) -> Identity | Denied:
        fields = {name.encode(): value.encode() for name, value in told.items()}
        return self._keys.identify(credential(fields), PEER, self._clock_s())

    def _request(self, told: dict[str, str], tokens: int, own_id: str, identity: Identity) -> Request | tuple[str, str]:
        """What is asked for, as the gate takes it; or a reason why it cannot be, and about what."""
        headers = {b"headworks-class": told[CLASS].encode()} if CLASS in told else {}
        service_class = self._rules.service_class(headers, identity)
        if service_class is None:
            return "forbidden", class_refused(headers)
        pools, model = self._models.pools(identity), told.get(MODEL)
        pool = next(iter(pools), None) if model is None else self._models.pool(model, identity)
        if pool is None:
            return "model_not_found", (model or "")[:128]
        if model is None and len(pools) > 1:
            return "invalid_request", NO_MODEL
        return _passing(own_id, identity, service_class.name, model or pools[pool], pool, tokens, self._clock_s())

    async def _judged(self, request: Request, is_spent: bool) -> Decision:
        judged: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        self._asks.expect(request.id, lambda told: None if judged.done() else judged.set_result(told))
        self._asks.feed(events.PassedBy(request, is_spent))
        try:
            return (await judged).decision
        finally:
            self._asks.expect(request.id, None)

    def _over(self, question: Any, answer: reply.OwnAnswer) -> Any:
        return _answer(question, OVER_LIMIT, answer.headers, answer.body)


def _tokens(question: Any) -> int:
    """The most that any of its descriptors adds; 1 if none says."""
    stated: list[int] = [one.hits_addend.value for one in question.descriptors if one.HasField("hits_addend")]
    of_all: int = question.hits_addend
    return min(TOKENS_MAX, max([*stated, of_all or (0 if stated else 1)]))


def _answer(question: Any, code: Any, lines: bytes, body: bytes) -> Any:
    """The same for each of its descriptors: they are one request's."""
    told = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs_of(lines)]
    fields = [AddedHeader(key=name, value=value) for name, value in told]
    status = DescriptorStatus(code=code)
    return RateLimitResponse(
        overall_code=code,
        statuses=[status for _ in question.descriptors],
        response_headers_to_add=fields,
        raw_body=body,
    )


def _passing(
    own_id: str, identity: Identity, service_class: str, model: str, pool: str, tokens: int, arrived_s: float
) -> Request:
    return Request(
        id=own_id,
        key=RequestKey(identity.tenant, own_id),
        key_given=False,
        fingerprint="",
        client=identity.client,
        service_class=service_class,
        model=model,
        pool=pool,
        prompt_bytes=0,
        prompt_tokens=tokens,
        output_tokens_max=0,
        samples=1,
        stream=False,
        prefix=(),
        session=None,
        retry_count=0,
        arrived_s=arrived_s,
        start_by_s=INFINITE_S,
        finish_by_s=INFINITE_S,
        route=NAME,
    )
