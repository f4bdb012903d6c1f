"""`headworks serve` as a process among processes: signals, kills, pauses, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from processes import ask, configuration, engine, gateway, stream, until

ANYWHERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def test_I41_sigterm_drains_streams_end_and_the_admin_port_says_so_until_then() -> None:
    with engine() as upstream, gateway("--upstream", upstream.url, *ANYWHERE) as front:
        with stream(front.url, tokens=400) as lines:
            next(lines)
            front.send(signal.SIGTERM)
            answer = until(lambda: (answer := front.get("/readyz")).status_code == 503 and answer)
            assert answer.json()["obstacles"][0] == "This gateway is draining."
            assert front.audit() == []
            refused = ask(front.url)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert list(lines)[-1] == "data: [DONE]"
        assert front.ended() == 0
        assert upstream.inside() == 0


def test_I41_a_second_signal_changes_nothing_and_idle_it_ends_at_once() -> None:
    with engine() as upstream, gateway("--upstream", upstream.url, *ANYWHERE) as front:
        assert ask(front.url).status_code == 200
        started_s = time.monotonic()
        front.send(signal.SIGINT)
        front.send(signal.SIGTERM)
        assert front.ended() == 0
        assert time.monotonic() - started_s < 4.0


def test_A7_a_killed_gateway_leaves_nothing_running_in_the_engine() -> None:
    with engine() as upstream:
        with gateway("--upstream", upstream.url, *ANYWHERE) as front, stream(front.url, tokens=2000) as lines:
            next(lines)
            assert upstream.inside() == 1
            front.send(signal.SIGKILL)
            front.ended()
            with pytest.raises(httpx.HTTPError):
                list(lines)
            until(lambda: upstream.inside() == 0)
        with gateway("--upstream", upstream.url, *ANYWHERE) as front:
            assert ask(front.url).status_code == 200
            assert front.audit() == []


def test_A7_a_killed_engine_breaks_its_streams_and_a_new_one_is_taken_up() -> None:
    with engine() as upstream, gateway("--upstream", upstream.url, *ANYWHERE) as front:
        with stream(front.url, tokens=2000) as lines:
            next(lines)
            time.sleep(0.7)  # two looks: it is known in which incarnation it runs
            upstream.kill()
            last = ""
            with pytest.raises(httpx.HTTPError):
                for line in lines:
                    last = line
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_lost"
        assert front.charged() == 1, "nobody has proved that it stopped"
        until(lambda: front.get("/readyz").status_code == 503)
        refused = ask(front.url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")
        with engine(upstream.port):
            until(lambda: front.get("/readyz").status_code == 200)
            until(lambda: front.charged() == 0)
            page = front.get("/metrics").text
            assert 'headworks_releases_total{pool="upstream",evidence="E4"} 1' in page
            assert ask(front.url).status_code == 200
            assert front.audit() == []


def test_A7_a_gateway_that_was_frozen_for_longer_than_its_lease_goes_on_and_its_books_are_right(tmp_path: Path) -> None:
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, ledger={"url": "memory:", "lease_s": 2})
        with gateway("--config", str(file)) as front:
            with stream(front.url, tokens=1200) as lines:
                next(lines)
                front.send(signal.SIGSTOP)
                time.sleep(3.0)
                front.send(signal.SIGCONT)
                assert list(lines)[-1] == "data: [DONE]"
            until(lambda: front.charged() == 0)
            until(lambda: ask(front.url).status_code == 200)  # what took long while it was frozen may be foreseen once more
            assert front.audit() == []


def test_I39_sighup_takes_a_good_file_whole_and_a_bad_one_not_at_all(tmp_path: Path) -> None:
    keys = {"OLD_KEY": "the-old-key-of-this-drill", "NEW_KEY": "the-new-key-of-this-drill"}
    old, new = ({"Authorization": f"Bearer {key}"} for key in keys.values())
    with engine() as upstream:
        file = configuration(tmp_path, upstream.url, tenants={"acme": {"keys": ["env:OLD_KEY"]}})
        good = file.read_text()
        with gateway("--config", str(file), **keys) as front:
            assert ask(front.url, **old).status_code == 200
            file.write_text(good.replace('"pools"', '"polls"'))
            front.send(signal.SIGHUP)
            time.sleep(0.5)
            assert ask(front.url, **old).status_code == 200
            file.write_text(good.replace("OLD_KEY", "NEW_KEY"))
            front.send(signal.SIGHUP)
            until(lambda: ask(front.url, **new).status_code == 200)
            assert ask(front.url, **old).status_code == 401


def test_I39_a_watched_file_is_taken_and_an_operator_is_told_what_is_wrong_with_a_bad_one(tmp_path: Path) -> None:
    keys = {
        "OLD_KEY": "the-old-key-of-this-drill",
        "NEW_KEY": "the-new-key-of-this-drill",
        "ADMIN_KEY": "the-admin-key-of-this-drill",
    }
    with engine() as upstream:
        server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "admin_key": "env:ADMIN_KEY"}
        file = configuration(tmp_path, upstream.url, server=server, tenants={"acme": {"keys": ["env:OLD_KEY"]}})
        good = file.read_text()
        with gateway("--config", str(file), "--watch", **keys) as front:
            file.write_text(good.replace("OLD_KEY", "NEW_KEY"))
            until(lambda: ask(front.url, Authorization=f"Bearer {keys['NEW_KEY']}").status_code == 200)
            file.write_text(good.replace('"pools"', '"polls"'))

            def policy(*words: str) -> subprocess.CompletedProcess[str]:
                command = [sys.executable, "-m", "headworks.cli.main", "policy", *words, "--admin", front.admin]
                around = {**os.environ, "HEADWORKS_ADMIN_KEY": keys["ADMIN_KEY"]}
                return subprocess.run(command, capture_output=True, text=True, timeout=60, env=around, check=False)

            told = policy("reload", "--reason", "a drill")
            assert told.returncode == 1 and "not reloaded: " in told.stderr and "polls" in told.stderr, told.stderr
            shown = policy("show")
            assert shown.returncode == 0 and shown.stdout.rstrip().endswith("mode enforce")
            file.write_text(good)
            assert policy("reload", "--reason", "a drill").stdout.endswith("is in force\n")
            assert ask(front.url, Authorization=f"Bearer {keys['NEW_KEY']}").status_code == 401


def test_A5_K18_streams_that_are_left_in_a_crowd_are_stopped_in_the_engine() -> None:
    """A mass disconnect (K18): everything falls to zero, and the counters with it."""
    with engine() as upstream, gateway("--upstream", upstream.url, *ANYWHERE) as front:
        with httpx.Client(trust_env=False, timeout=10) as client:
            opened = []
            for _ in range(6):
                body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3000, "stream": True}
                request = client.build_request("POST", front.url + "/v1/chat/completions", json=body)
                opened.append(client.send(request, stream=True))
            until(lambda: upstream.inside() == 6)
            for answer in opened:
                answer.close()
        until(lambda: upstream.inside() == 0, 3.0)
        until(lambda: front.charged() == 0, 8.0)
        assert front.audit() == []
