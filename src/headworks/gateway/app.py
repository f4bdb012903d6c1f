"""The wiring: every object of a gateway, built by hand, in order, and what starts and stops with it.

Read this first: it is the whole list of what there is. A path picks a dialect in `proxy.py`; nothing else is routed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headworks.config.settings import Settings
from headworks.core import events, quota
from headworks.core.commands import Answer
from headworks.core.gate import Gate
from headworks.core.policy import Policy
from headworks.core.types import Charge, Owner, RequestKey
from headworks.engines.base import Engine
from headworks.engines.outbox import Outbox
from headworks.gateway import clock, grpc_port, inherited, parts, stores
from headworks.gateway.accounts import WORKER, Accounts, Records
from headworks.gateway.admin import admin_app
from headworks.gateway.admin_server import admin_server, admin_socket, with_options
from headworks.gateway.by_hand import ByHand
from headworks.gateway.collector import collect_rarely
from headworks.gateway.compute_watch import watches
from headworks.gateway.cost_desk import CostDesk
from headworks.gateway.costs import Costs
from headworks.gateway.counting import Counting
from headworks.gateway.dialects.base import Limits
from headworks.gateway.feed import Feed
from headworks.gateway.guard import Guard
from headworks.gateway.http.listen import listen_on_port, set_options
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.ledger_desk import LedgerDesk
from headworks.gateway.log_facts import Facts
from headworks.gateway.looks import Looks
from headworks.gateway.metrics import Reading, Registry
from headworks.gateway.mirrors import Mirrors, uncopied
from headworks.gateway.models import Models
from headworks.gateway.orders import Orders
from headworks.gateway.own import Own
from headworks.gateway.proxy import Proxy
from headworks.gateway.readings import ledger_readings, readings
from headworks.gateway.reload_door import Reload
from headworks.gateway.replicas import Replicas
from headworks.gateway.routes import methods
from headworks.gateway.runner import Runner
from headworks.gateway.standing import Standing, obstacles
from headworks.gateway.tls import Certificates
from headworks.gateway.tracing import Tracing
from headworks.gateway.usage import Others

log = logging.getLogger("headworks.gateway")

STORE_PATIENCE_S = 2.0
"""How long a start waits for a shared ledger to say which keys there are."""
READY_S_MAX = 10.0
CONNECTED_S = 0.5
"""For the request of a client that had connected when a socket that lives on was given up."""


class App:
    """One gateway process."""

    address: Any = None
    admin_address: Any = None
    """Where both ports are, once they listen."""
    reload_by: Reload | None = None  # reads the file again; whoever serves from one sets it
    _epoch = ""
    """Which process a shared ledger was opened for."""
    _utc_offset_s: float
    """Fixed for this life: setting the machine's clock moves no quota's period."""
    _admin_task: asyncio.Task[None] | None = None
    _draining = _handed = False

    def __init__(self, policy: Policy, settings: Settings, *, name: str = "gateway") -> None:
        boot = secrets.token_hex(8)
        owner = Owner(name, boot)
        self.orders = Orders(settings, lambda told: self.facts.declared(told), clock.utc_s)  # noqa: PLW0108 (they come later)
        outbox = Outbox()
        self.replicas = Replicas(policy, settings, outbox)
        policy = self.orders.applied(policy)
        self.policy, self.settings = policy, settings
        turns = clock.TurnClock(clock.now_s)
        self.store, embedded, self._shared = stores.opened(settings, owner, self._feed, turns.now_ms)
        self._utc_offset_s = clock.utc_s() - clock.now_s()
        self.gate = Gate(policy, name, secrets.token_bytes(32), boot, self._utc_offset_s)
        self.models = Models(policy)
        self.registry = Registry(self._readings)
        self.key_watch = KeyWatch(stores.keyring(settings, self._shared), settings, policy, clock.utc_s, self._allow_labels)
        self._allow_labels()
        self.accounts = Accounts(self.registry)
        self.log = parts.decision_log(settings)
        self.usage = parts.usage_journal(settings, policy, self._utc_offset_s)
        records = Records(self.accounts, self.log, self.usage)
        self.telemetry = records.telemetry = parts.telemetry(settings, name, self._utc_offset_s)
        self.runner = Runner(
            self.gate, self.store, self.replicas.engines, records, clock.now_s, watches(settings, clock.now_s), turns, outbox
        )
        self.facts = Facts(self.log).began(name, boot, self._utc_offset_s, settings.ledger_url.partition(":")[0], policy)
        self.runner.on_fact = self._on_fact
        self.ledger = LedgerDesk(
            embedded, self._shared, owner, self.gate.check, lambda: self.policy.pools, self._ledger_answered, clock.now_s
        )
        self.costs = records.costs = Costs(policy, self.ledger.charged, self.store.now_ms, clock.now_s)
        self.cost_desk = CostDesk(self.usage, clock.utc_s)
        self.ledger.on_declared = self.orders.declare
        by_hand = self.orders, self.replicas, self._take_again, lambda: self.policy, self.replicas_shown, self.log
        self.by_hand = ByHand(*by_hand, self._shared)
        self.answers = parts.answers(settings)
        self.standing = Standing(
            self.snapshot, self.gate.estimates, self.registry, self.accounts, records.troubles, clock.now_s, clock.utc_s
        )
        self.looks = Looks(self._look)
        self.feed = Feed(self.looks.look)
        self.counting = Counting(settings.tokenizers) if settings.tokenizers else None
        self.explanations = parts.explanations(self._shared, owner, self.log)
        self.guard = Guard(settings.guard, clock.now_s, parts.rss_bytes, records.loop_lag)
        self.proxy = self._proxy(boot)
        self.mirrors = self._mirrors(boot)
        self.proxy.mirrors = self.mirrors.if_any()
        self.certificates = None if settings.tls is None else Certificates(settings.tls)
        self.server = parts.server(self.proxy.serve, settings, methods, self.certificates, outbox)
        self.grpc = grpc_port.opened(settings, self, boot, outbox)
        self._admin = admin_server(self._admin_app(), None if self.certificates is None else self.certificates.context)

    def _proxy(self, boot: str) -> Proxy:
        note = self.log.name if self.log is not None else _unnoted
        return Proxy(
            self.runner,
            self.policy,
            self.key_watch.keys,
            self.models,
            self.answers,
            Own(self._usage, self.explanations, self.cost_desk.own, note, clock.utc_s),
            Tracing(self.telemetry, note),
            parts.equals(self.settings),
            self.guard,
            Limits(parts=self.settings.parts),
            boot=boot,
            clock_s=clock.now_s,
            wall_s=clock.utc_s,
            counting=self.counting,
        )

    def _mirrors(self, boot: str) -> Mirrors:
        note = self.log.copy if self.log is not None else uncopied
        mirrors = self.settings.mirrors
        return Mirrors(self.runner, self.models, self.guard, note, self.policy, mirrors, boot=boot, clock_s=clock.now_s)

    # life

    async def start(self) -> None:
        """Listen. Requests are refused with `no_replica` until an engine has said what it holds.

        Raises `LedgerError` where stored keys are there and cannot be used.
        """
        if self._shared is not None:
            self._shared.start()
        await self.key_watch.start(STORE_PATIENCE_S if self._shared is not None else None)
        self._read_usage(await self._other_usage(self.policy))
        self.runner.start()
        self.guard.start()
        await self.by_hand.start()
        if self.certificates is not None:
            self.certificates.start()
        handed = inherited.inherited(os.environ)
        admin = self.settings.admin
        at_hand = inherited.checked(handed.get(inherited.ADMIN, []), "admin", admin)
        public = inherited.checked(handed.get(inherited.PUBLIC, []), "listen", self.settings.listen)
        listening = with_options(at_hand[0]) if at_hand else admin_socket(admin.host, admin.port)
        self.admin_address = listening.getsockname()
        self._admin_task = asyncio.create_task(self._admin.serve(sockets=[listening]))
        self._handed = bool(public)
        if public:
            await self._ready(READY_S_MAX)
        self.address = await self._listen(public)
        if self.grpc is not None:
            await self.grpc.start()
        collect_rarely()

    async def _ready(self, within_s: float) -> None:
        """Until it takes work, or so long: clients wait in the backlog of what was handed over, or another takes them."""
        until_s = clock.now_s() + within_s
        while self.obstacles() and clock.now_s() < until_s:  # noqa: ASYNC110 (looks at what others change, each in its time)
            await asyncio.sleep(0.02)

    async def _listen(self, sockets: list[socket.socket]) -> Any:
        """On the public port: on sockets that were handed over, alone, or beside the other workers of this host."""
        listen = self.settings.listen
        for one in sockets:
            set_options(one, shared=False)
        if not sockets:
            sockets = await listen_on_port(listen.host, listen.port, shared=self.settings.workers > 1)
        names = [(await self.server.start(sock=one))[0] for one in sockets]
        return names[0]

    async def stop(self) -> None:
        """Drain, cut what is left at the limit, settle the ledger. Until the port closes, arrivals are told `draining`.

        Where sockets were handed over, another process or the next life of this one is there for whoever connects from now on.
        """
        self._draining = True
        if self._handed:
            self.server.stop_listening()
            await asyncio.sleep(CONNECTED_S)
            self.server.stop_accepting()
        self.mirrors.close()
        await self.runner.drain(self.settings.drain_s)
        await self.server.close(1.0)
        if self.grpc is not None:
            await self.grpc.stop()
        await self.runner.close()
        self.guard.close()
        await self.key_watch.close()
        self.by_hand.close()
        if self.certificates is not None:
            self.certificates.close()
        self.feed.close()
        self._admin.should_exit = True
        if self._admin_task is not None:
            await self._admin_task
        if self.counting is not None:
            self.counting.close()
        self.explanations.close()
        if self.log is not None:
            self.log.close()
        if self.usage is not None:
            self.usage.close()
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)

    def fixed(self, settings: Settings) -> list[str]:
        """What these settings would change that stays as it was started: it keeps a reload from being taken."""
        mine, held = self.settings, (*ADDRESSES, *SECRETS, *REMEMBERED, *LOADED, "grpc", "lease_s", "limits")
        found = [name for name in held if getattr(mine, name) != getattr(settings, name)]
        return found + self.replicas.fixed(mine, settings)

    async def reload(self, policy: Policy, settings: Settings) -> None:
        """Decide by another policy, for other keys, from now on. Every request sees one version. Raises `EngineError`.

        Files are read first, aside; then everything changes in one turn of the loop. One at a time.
        """
        assert not self.fixed(settings), "the caller asked before"
        async with self.replicas.changing:
            self.replicas.check(settings)
            if self.certificates is not None:
                self.certificates.refresh()
            self.replicas.configured = policy
            await self._take(policy.number, settings)

    @property
    def engines(self) -> dict[str, Engine]:
        return self.replicas.engines

    async def _take_again(self) -> None:
        await self._take(self.policy.number + 1, self.settings)

    async def _take(self, number: int, settings: Settings) -> None:
        """Decide by the configuration with what an operator orders and tells beside it, from now on."""
        policy = replace(self.orders.applied(self.replicas.policy()), number=number)
        others = await self._other_usage(policy)
        self.policy, self.settings = policy, settings
        self.guard.change(settings.guard)
        self.proxy.change_policy(policy, Limits(parts=settings.parts))
        self.models.change_policy(policy)
        self.mirrors.change(policy, settings.mirrors)
        self.proxy.mirrors = self.mirrors.if_any()
        self.key_watch.change(settings, policy)
        self._allow_labels()
        if self.usage is not None:
            self.usage.change_policy(self.replicas.configured)
        self.costs.change_policy(self.replicas.configured)
        self.runner.feed(events.PolicyChanged(policy))
        self._read_usage(others)
        self.runner.take_in()  # whoever is told that it holds may rely on it
        computes = watches(settings, clock.now_s)
        for name in self.replicas.add_missing(settings, policy):  # the gate knows of them now, and of those it forgot
            self.runner.samplers.watch(name, computes.get(name)).start()

    def _periods(self, policy: Policy) -> dict[str, quota.Period]:
        """The running period of each tenant that has a quota."""
        utc_s = clock.now_s() + self._utc_offset_s
        quotas = {name: tenant.quota for name, tenant in policy.tenants.items() if tenant.quota is not None}
        return {name: quota.period_of(one.period, utc_s) for name, one in quotas.items()}

    async def _other_usage(self, policy: Policy) -> Others | None:
        """What other processes wrote of these periods, read where the loop does not wait for it."""
        periods = self._periods(policy)
        return await asyncio.to_thread(self.usage.others, periods) if self.usage is not None and periods else None

    def _read_usage(self, others: Others | None) -> None:
        """Tell the gate what was used of the running periods, by the usage journal."""
        periods = self._periods(self.policy)
        if self.usage is None or not periods:
            return
        used: list[Charge] = []
        for name, (tokens, nanomoney) in self.usage.used(periods, others).items():
            scope = quota.scope(name, periods[name].name)
            used += [Charge(scope, "tokens", tokens), Charge(scope, "nanomoney", nanomoney)]
        self.runner.feed(events.UsageRead(tuple(used)))

    # the ledger

    def _feed(self, event: events.Event) -> None:
        if isinstance(event, events.StoreChanged):
            self._epoch = event.epoch
        self.runner.feed(event)

    def _ledger_answered(self, answers: list[Answer]) -> None:
        self.runner.feed(events.LedgerAnswered(answers))

    def _on_fact(self, event: events.Event, at_s: float) -> None:
        self.facts.take(event, at_s)
        if isinstance(event, events.ReplicaDescribed):
            self.models.described(event.capacity)
            self._allow_labels()

    # what the admin port shows

    def _admin_app(self) -> Any:
        key = self.settings.admin_key
        return admin_app(
            obstacles=self.obstacles,
            metrics=self.registry.render,
            looks=self.looks,
            feed=self.feed,
            ledger=self.ledger,
            explain=self.explanations.of,
            admin_key=key.reveal() if key is not None else None,
            keys=self.key_watch,
            replicas=self.by_hand,
            reload=lambda: self.reload_by,
            cost=self.cost_desk,
            orders=self.by_hand,
        )

    def _usage(self, tenant: str) -> dict[str, Any]:
        return self.standing.own(self.policy, tenant)

    def _look(self) -> dict[str, Any]:
        """Everything there is to see of it now."""
        state = self.standing.state(self.policy, self.ledger.charged(), self.store.now_ms())
        return {**state, "mirrors": self.mirrors.shown(), "obstacles": self._obstacles(state)}

    def obstacles(self) -> list[str]:
        """What keeps this gateway from taking work."""
        return self._obstacles(self.snapshot())

    def _obstacles(self, snapshot: dict[str, Any]) -> list[str]:
        found = ["This gateway is draining."] if self._draining else []
        return found + obstacles(snapshot, self.policy, self.runner.samplers.failures())

    def snapshot(self, tenant: str | None = None) -> dict[str, Any]:
        return self.gate.snapshot(clock.now_s(), tenant)

    def replicas_shown(self) -> dict[str, dict[str, Any]]:
        """Every replica there is, how it is, and what an operator told of it."""
        return self.replicas.shown(self.snapshot())

    def _readings(self) -> Iterable[Reading]:
        ledger = self.settings.ledger_url.partition(":")[0]
        yield from readings(self.snapshot(), self.ledger.charged(), ledger, self.store.now_ms())
        yield from self.costs.readings()
        yield from ledger_readings(self._epoch, *self.ledger.audited())
        for service_class, ratio in self.accounts.goodput.ratios(clock.now_s()):
            yield Reading("goodput_ratio", (service_class,), ratio)
        yield Reading("open_streams", (WORKER,), float(len(self.server.exchanges) + (self.grpc.open_count if self.grpc else 0)))
        yield Reading("shed_self_total", (WORKER,), float(self.guard.shed))
        yield Reading("rss_bytes", (WORKER,), float(parts.rss_bytes()))

    def _allow_labels(self) -> None:
        policy, allow = self.policy, self.registry.allow
        allow("tenant", {*policy.tenants, *policy.asides})
        allow("client", self.key_watch.clients)
        allow("class", {*policy.classes, *policy.asides})
        allow("pool", policy.pools)
        allow("model", {model for pool in policy.pools.values() for model in pool.models} | self.models.names())
        allow("replica", {*self.replicas.engines, *(one.name for pool in policy.pools.values() for one in pool.replicas)})


LOGS = ("decision_log", "usage", "telemetry")
ADDRESSES = ("listen", "admin", "tls", "issuer_keys", "ledger_url", "domain", "when_lost", "durability", *LOGS)
SECRETS = ("admin_key", "keys_secret")
REMEMBERED = ("remember_s", "replay_bytes_max", "replay_total_bytes_max")
"""Settings of what is kept for a repeated key."""
LOADED = ("tokenizers",)
"""Files that are read at the start: too large to be read while requests wait."""


def _unnoted(request: str, key: RequestKey, request_id: str) -> None:
    """No decision log is kept, so no name has to be found again."""
