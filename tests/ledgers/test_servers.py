"""The servers that tests of a shared ledger run on: each comes up, can be hurt, and is gone afterwards."""

import os

import pytest

from headworks.testing import servers

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())


def test_a_killed_server_comes_back_empty_and_as_another():
    with servers.single() as server:
        first = server.run_id()
        server.ask("SET", "key", "value")
        server.kill()
        server.start()
        assert server.ask("GET", "key") is None
        assert server.run_id() != first


def test_a_saved_server_comes_back_with_what_it_had_when_it_was_saved():
    with servers.single() as server:
        server.ask("SET", "key", "saved")
        server.ask("SAVE")
        server.ask("SET", "key", "newer")
        server.kill()
        server.start()
        assert server.ask("GET", "key") == "saved"


def test_a_paused_server_keeps_its_connections_and_answers_nothing():
    with servers.single() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.ask("PING", wait_s=0.05)
        server.go_on()
        assert server.ask("PING") == "PONG"


def test_the_sentinels_put_the_replica_in_the_place_of_a_killed_primary():
    with servers.sentinel() as trio:
        first = trio.primary()
        trio.fail_over()
        assert trio.primary() is not first
        assert trio.primary().ask("SET", "key", "value") == "OK"


def test_three_nodes_share_the_slots_and_refuse_what_is_another_s():
    with servers.cluster() as nodes:
        holder = nodes.holder("{main}")
        assert holder.ask("SET", "{main}", "value") == "OK"
        other = next(one for one in nodes.members if one is not holder)
        with pytest.raises(servers.ServerError, match="MOVED"):
            other.ask("GET", "{main}")


def test_nothing_is_left_of_a_block_that_failed():
    with pytest.raises(ZeroDivisionError), servers.single() as server:
        pid, directory = server.pid, server.directory
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not directory.exists()
