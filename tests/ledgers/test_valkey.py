"""The store in a server against the suite of all stores: Valkey alone, as a cluster, under sentinels, and Redis 7."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from headworks.testing import servers
from headworks.testing.suites import ledger
from headworks.testing.suites.ledger_subject import Opened
from tests.ledgers.valkey_world import ValkeyWorld

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
LONG = (ledger.case_A3_two_gateways_one_grant, ledger.case_K14_random_cancels_leave_nothing_held, ledger.check_history)
"""Thousands of round trips: they are made to one kind of server only."""
SHORT = tuple(case for case in ledger.CASES if case not in LONG)
SHORTER = tuple(case for case in SHORT if case not in (ledger.check_rows, *ledger.KEY_CASES))
"""What keys do is no other in a cluster."""
REDIS = shutil.which("redis-server")


def name(case: Callable[[Opened], None]) -> str:
    return case.__name__.removeprefix("case_")


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


@pytest.fixture(scope="module")
def nodes() -> Iterator[servers.Nodes]:
    with servers.cluster() as three:
        yield three


@pytest.fixture(scope="module")
def trio() -> Iterator[servers.Trio]:
    with servers.sentinel() as watched:
        yield watched


@pytest.fixture(scope="module")
def redis() -> Iterator[servers.Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(servers.NAMED_BY, str(REDIS))
        with servers.single() as one:
            yield one


def judged(case: Callable[[Opened], None], url: str, holder: Callable[[str], servers.Server]) -> None:
    world = ValkeyWorld(url, holder)
    try:
        case(world.opened())
    finally:
        world.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ledger.CASES, ids=name)
def test_A11_one_server(case: Callable[[Opened], None], server: servers.Server) -> None:
    judged(case, server.url, lambda key: server)


@pytest.mark.parametrize("case", SHORTER, ids=name)
def test_A11_a_cluster_keeps_a_domain_together(case: Callable[[Opened], None], nodes: servers.Nodes) -> None:
    judged(case, nodes.url, nodes.holder)


@pytest.mark.parametrize("case", SHORT[:8], ids=name)
def test_A11_the_primary_that_sentinels_name(case: Callable[[Opened], None], trio: servers.Trio) -> None:
    judged(case, trio.url, lambda key: trio.primary())


@pytest.mark.skipif(REDIS is None, reason="no redis-server on this machine")
@pytest.mark.parametrize("case", SHORT, ids=name)
def test_A11_redis_7(case: Callable[[Opened], None], redis: servers.Server) -> None:
    judged(case, redis.url, lambda key: redis)
