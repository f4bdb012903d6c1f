"""The store in a Valkey server against the suite of all stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headworks.testing import servers
from headworks.testing.suites.ledger import CASES
from headworks.testing.suites.ledger_subject import Opened
from tests.ledgers.valkey_world import ValkeyWorld

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    with servers.single() as one:
        yield one


@pytest.fixture
def world(server: servers.Server) -> Iterator[ValkeyWorld]:
    def restart() -> None:
        server.kill()
        server.start()

    one = ValkeyWorld(server.url, lambda key: server, restart=restart)
    yield one
    one.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
def test_valkey_store(case: Callable[[Opened], None], world: ValkeyWorld) -> None:
    case(world.opened())
