"""What a gateway is built from, made from its settings. `app.py` puts them together."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from headworks.config.settings import Settings
from headworks.core.policy import Policy
from headworks.core.types import Owner
from headworks.engines.outbox import Outbox
from headworks.gateway import clock, reply
from headworks.gateway.answers import Answers
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.dialects.table import DIALECTS
from headworks.gateway.equals import Equals
from headworks.gateway.error_shapes import OPENAI
from headworks.gateway.every_answer import Headers
from headworks.gateway.explanations import Explanations
from headworks.gateway.http import EdgeLimits, Server
from headworks.gateway.http.server import Handler
from headworks.gateway.other_logs import OtherLogs
from headworks.gateway.telemetry import Telemetry, opened
from headworks.gateway.tls import Certificates, Door
from headworks.gateway.usage import UsageJournal

if TYPE_CHECKING:
    from headworks.ledgers.valkey import ValkeyStore

log = logging.getLogger("headworks.gateway")


def answers(settings: Settings) -> Answers:
    """Answers to repeated keys, as long as they are kept."""
    return Answers(
        bytes_max=settings.replay_bytes_max,
        total_bytes_max=settings.replay_total_bytes_max,
        remember_s=settings.remember_s,
        clock_s=clock.now_s,
        wall_s=clock.utc_s,
    )


def equals(settings: Settings) -> Equals:
    """Answers to equal requests, as long as they are kept."""
    return Equals(settings.replay_bytes_max, settings.replay_total_bytes_max, settings.remember_s, clock.now_s)


def server(
    handler: Handler,
    settings: Settings,
    allowed: Callable[[str], tuple[str, ...] | None],
    certificates: Certificates | None,
    outbox: Outbox,
) -> Server:
    """The public port."""
    let_in = None if certificates is None else Door(certificates.context).let_in
    return Server(
        handler,
        _edge_limits(settings),
        allowed=allowed,
        clock_s=clock.now_s,
        error_body=_http_error,
        on_fault=_log_fault,
        let_in=let_in,
        outbox=outbox,
    )


def unheard_server(
    handler: Handler, settings: Settings, allowed: Callable[[str], tuple[str, ...] | None], outbox: Outbox
) -> Server:
    """An edge that listens nowhere: connections are shown to it, all by one proxy, whoever they are from."""
    limits = _edge_limits(settings)
    return Server(
        handler,
        replace(limits, connections_per_address_max=limits.connections_max),
        allowed=allowed,
        clock_s=clock.now_s,
        error_body=_http_error,
        on_fault=_log_fault,
        outbox=outbox,
    )


def _log_is_lost(said: str) -> None:
    log.error("the decision log cannot be written, and what it lacks is lost: %s", said)


def _http_error(status: int, code: str, message: str, path: str) -> tuple[Headers, bytes]:
    dialect = DIALECTS.get(path)
    return reply.http_error(status, code, message, clock.utc_s(), OPENAI if dialect is None else dialect.shape)


def _log_fault(fault: BaseException) -> None:
    """A handler failed, which is our fault. Its client got a 500."""
    log.error("a request could not be served", exc_info=fault)


def decision_log(settings: Settings) -> DecisionLog | None:
    """None: nothing is written down."""
    given = settings.decision_log
    if given.directory is None:
        return None
    bounds: dict[str, int] = {"rotate_bytes": given.rotate_bytes, "keep_days": given.keep_days}
    return DecisionLog(Path(given.directory), clock_s=clock.now_s, wall_s=clock.utc_s, on_failure=_log_is_lost, **bounds)


def explanations(store: ValkeyStore | None, owner: Owner, log: DecisionLog | None) -> Explanations:
    """`store`: that of a ledger which gateways share. They ask each other there what became of a request."""
    return Explanations(log.find if log is not None else None, None if store is None else OtherLogs(store, owner, log))


def usage_journal(settings: Settings, policy: Policy, offset_s: float) -> UsageJournal | None:
    """None: a restart forgets what quotas have used. `offset_s`: the wall clock less ours, fixed for this life."""
    usage = settings.usage
    if usage.directory is None:
        return None
    return UsageJournal(
        Path(usage.directory),
        policy,
        utc_s=lambda: clock.now_s() + offset_s,
        offset_s=offset_s,
        keep_days=usage.keep_days,
        on_failure=lambda said: log.error("the usage journal cannot be written and is tried again: %s", said),
    )


def telemetry(settings: Settings, name: str, offset_s: float) -> Telemetry | None:
    """None: no traces are begun, and nothing is exported."""
    given = settings.telemetry
    return opened(given.otlp_url, given.traces_ratio, offset_s, {"service.instance.id": name, "host.name": gethostname()})


def _edge_limits(settings: Settings) -> EdgeLimits:
    limits = settings.limits
    return EdgeLimits(
        body_bytes_max=limits.body_bytes_max,
        header_bytes_max=limits.header_bytes_max,
        headers_max=limits.headers_max,
        header_s=limits.header_s,
        body_s=limits.body_s,
        idle_s=limits.idle_s,
        write_stall_s=limits.write_stall_s,
        connections_max=limits.connections_max,
        descriptors_max=int(settings.guard.fds_stop_accept_ratio * resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    )


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
