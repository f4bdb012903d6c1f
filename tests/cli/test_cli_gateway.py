"""`headworks ledger` and `headworks explain`, asked of a whole gateway that runs in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from app_scene import ENVIRONMENT, PATIENT, Scene, call, chat, fake_engine, first_event, rest_of_stream, run, scene

from headworks.cli.configured import Asked
from headworks.cli.main import run as headworks
from headworks.cli.reloading import Reloading
from headworks.config.problem import ConfigError
from headworks.testing import servers

Capture = pytest.CaptureFixture[str]


async def verb(s: Scene, *words: str) -> int:
    """A verb in a thread, as another process would ask."""
    host, port = s.app.admin_address[:2]
    return await asyncio.to_thread(headworks, [*words, "--admin", f"http://{host}:{port}"])


def test_ledger_show_tells_what_is_charged(capsys: Capture) -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=200))
            await first_event(client)
            record = s.charged()[0]
            held = s.held("pool:llama")
            assert await verb(s, "ledger", "show") == 0
            text = capsys.readouterr().out
            assert f"pool llama: {held:,} tokens held" in text
            assert record.execution in text
            assert "1 charged" in text
            assert await verb(s, "ledger", "show", "--json") == 0
            assert json.loads(capsys.readouterr().out)["records"][0]["execution"] == record.execution
            await rest_of_stream(client)
            client.close()

    run("uvloop", steps())


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_ledger_show_tells_of_the_open_sessions(kind: str, capsys: Capture) -> None:
    if kind == "shared" and servers.why_not():
        pytest.skip(servers.why_not())

    async def steps(url: str) -> None:
        async with scene(ledger={"url": url}, tenants={"acme": {"keys": ["env:ACME_KEY"]}}) as s:
            key = "Authorization: Bearer acme-key-of-the-test"
            answer = await s.ask(call("/admit/session", key, body={"tokens": 2000, "deadline_s": 600}))
            name = answer.json()["session"]
            assert (await s.ask(chat(key, f"Headworks-Session: {name}"))).status == 200
            await s.until(lambda: not s.app.gate._desk.runs)
            assert await verb(s, "ledger", "show", "--json") == 0
            (told,) = json.loads(capsys.readouterr().out)["sessions"]
            assert told["session"].endswith(f"/{name}")
            assert (told["pool"], told["tokens"], told["running_tokens"]) == ("llama", 2000, 0)
            assert told["spent_tokens"] + told["unspent_tokens"] == 2000 and told["spent_tokens"] > 0
            assert 590 < told["left_s"] <= 600 and 50 < told["idle_left_s"] <= 60
            assert await verb(s, "ledger", "show") == 0
            text = " ".join(capsys.readouterr().out.split())
            assert f"{told['unspent_tokens']:,} unspent, 0 running, {told['spent_tokens']} spent of 2,000 tokens, " in text
            assert await verb(s, "ledger", "audit") == 0
            closing = call(f"/admit/session/{name}", key, body=b"").replace(b"POST", b"DELETE", 1)
            assert (await s.ask(closing)).status == 200
            assert await verb(s, "ledger", "show", "--json") == 0
            assert json.loads(capsys.readouterr().out.partition("\n")[2])["sessions"] == []

    with servers.single() if kind == "shared" else contextlib.nullcontext() as server:
        run("uvloop", steps("memory:" if server is None else server.url))


def test_F13_ledger_show_tells_which_orders_are_in_force_who_gave_them_when_and_why(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])

    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}}
        async with scene(fake_engine(), fake_engine(), tenants=tenants, server={"admin_key": "env:ADMIN"}) as s:
            assert await verb(s, "replica", "drain", "llama/0", "--reason", "a new card") == 0
            assert await verb(s, "tenant", "freeze", "acme", "--reason", "floods us [bold]since 14:02") == 0
            assert await verb(s, "mode", "observe", "--reason", "a wrong limit") == 0
            capsys.readouterr()
            assert await verb(s, "ledger", "show", "--json") == 0
            told = json.loads(capsys.readouterr().out)["orders"]
            assert [(one["verb"], one["subject"], one["actor"], one["reason"]) for one in told] == [
                ("drain", "llama/0", "server.admin_key", "a new card"),
                ("freeze", "acme", "server.admin_key", "floods us [bold]since 14:02"),
                ("observe", "", "server.admin_key", "a wrong limit"),
            ]
            assert await verb(s, "ledger", "show") == 0
            lines = capsys.readouterr().out.splitlines()
            assert f"ordered {told[0]['utc']} by server.admin_key: drain llama/0: a new card" in lines
            assert f"ordered {told[1]['utc']} by server.admin_key: freeze acme: floods us [bold]since 14:02" in lines
            assert f"ordered {told[2]['utc']} by server.admin_key: observe everybody: a wrong limit" in lines
            assert await verb(s, "replica", "resume", "llama/0", "--reason", "done") == 0
            assert await verb(s, "tenant", "thaw", "acme", "--reason", "done") == 0
            assert await verb(s, "mode", "enforce", "--reason", "done") == 0
            capsys.readouterr()
            assert await verb(s, "ledger", "show", "--json") == 0
            assert json.loads(capsys.readouterr().out)["orders"] == []

    run("uvloop", steps())


def test_ledger_audit_holds_or_does_not(capsys: Capture) -> None:
    async def steps() -> None:
        async with scene() as s:
            assert await verb(s, "ledger", "audit") == 0
            assert capsys.readouterr().out == "every counter is the sum of its parts\n"
            s.app.gate._desk.pools["llama"].tokens += 7
            assert await verb(s, "ledger", "audit") == 1
            assert "pool llama tokens: counter 7, parts 0" in capsys.readouterr().out
            assert await verb(s, "ledger", "audit", "--json") == 1
            assert json.loads(capsys.readouterr().out)["holds"] is False
            s.app.gate._desk.pools["llama"].tokens -= 7

    run("uvloop", steps())


def test_K05_explain_names_the_check_the_numbers_and_what_would_have_helped(capsys: Capture) -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        async with scene(tenants=tenants, classes={"interactive": {"on_tenant_full": "refuse"}}) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", key="ACME_KEY", stream=True, tokens=40))
            await first_event(client)
            assert (await s.ask(chat("Idempotency-Key: k2", key="ACME_KEY", tokens=5))).status == 429
            await rest_of_stream(client)
            client.close()
            await s.settled()
            assert await verb(s, "explain", "k2") == 0
            text = capsys.readouterr().out
            assert "of tenant acme (class interactive, key k2) asked tiny at /v1/chat/completions for" in text
            assert "it was refused at once: tenant acme would have 2 sequences running, and may have 1" in text
            assert "(tenant_capacity_exceeded)" in text
            assert "with 1 fewer sequence running for tenant acme, or with a limit of 2 sequences for tenant acme." in text
            assert "Its client was told to come back " in text
            assert await verb(s, "explain", "k1") == 0
            text = capsys.readouterr().out
            assert "it was admitted at once, by gateway gateway" in text and "its answer was complete, " in text
            assert "What it held was given back whole, on evidence E1: the answer ended in band." in text
            assert "40 written of the" in text
            assert s.app.log is not None
            s.app.log.flush()
            assert await asyncio.to_thread(headworks, ["explain", "k1", "--log", str(s.app.log.directory)]) == 0
            assert capsys.readouterr().out == text

    run("uvloop", steps())


def test_explain_of_a_name_nobody_knows_does_not_hold(capsys: Capture) -> None:
    async def steps() -> None:
        async with scene() as s:
            assert await verb(s, "explain", "who/is that?") == 1
            assert capsys.readouterr().out.startswith("nothing is known of who/is that?")
            assert headworks(["explain", "k1", "--log", "no-such-directory"]) == 2

    run("uvloop", steps())


@pytest.mark.parametrize("words", [("ledger", "show"), ("ledger", "audit"), ("explain", "k1")])
def test_a_gateway_that_is_not_there_could_not_be_asked(words: Sequence[str], capsys: Capture) -> None:
    assert headworks([*words, "--admin", "http://127.0.0.1:1"]) == 2
    assert "Is a gateway running?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("ledger", "show"), ("ledger", "audit"), ("explain", "k1"), ("top", "--once")])
def test_the_public_port_is_told_from_the_admin_port(words: Sequence[str], capsys: Capture) -> None:
    async def steps() -> None:
        async with scene() as s:
            public = f"http://127.0.0.1:{s.app.address[1]}"
            assert await asyncio.to_thread(headworks, [*words, "--admin", public]) == 2
            said = capsys.readouterr().err
            assert "admin port" in said and len(said.splitlines()) == 1

    run("uvloop", steps())


def test_a_key_no_header_can_carry_is_said(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWORKS_ADMIN_KEY", "clé")
    assert headworks(["ledger", "audit", "--admin", "http://127.0.0.1:1"]) == 2
    assert "no header can carry" in capsys.readouterr().err


def test_what_an_operator_declares_is_recorded_as_that(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is declared dead: it holds nothing and its record says by whose word; then its replica is."""

    async def steps() -> None:
        async with scene(classes=PATIENT, server={"admin_key": "env:ADMIN"}) as s:
            monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])
            clients = [await s.connect() for _ in range(2)]
            for client in clients:
                client.send(chat(stream=True, tokens=600))
                await first_event(client)
            execution = s.charged()[0].execution
            assert await verb(s, "ledger", "release", execution, "--reason", "its engine was scrapped") == 0
            assert capsys.readouterr().out == f"{execution} is FAILED and holds nothing\n"
            assert s.app.store.book.find(execution).evidence == "operator"
            assert await verb(s, "ledger", "release", execution, "--reason", "again") == 1
            assert capsys.readouterr().out == f"{execution} held nothing: it is FAILED\n"
            assert await verb(s, "ledger", "withdraw", "llama/0", "--reason", "scrapped") == 0
            assert capsys.readouterr().out == "1 executions on llama/0 have ended by it\n"
            assert s.charged() == []
            assert await verb(s, "ledger", "release", "x", "--reason", "") == 2
            assert "both texts" in capsys.readouterr().err
            for client in clients:
                client.close()
            await s.until(lambda: s.inside() == 0)

    run("uvloop", steps())


def test_D4_replica_drains_resumes_withdraws_and_lists(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])

    async def steps() -> None:
        async with scene(fake_engine(), fake_engine(), server={"admin_key": "env:ADMIN"}) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=2000))
            await first_event(client)
            (busy,) = [number for number, engine in enumerate(s.engines) if engine.held()]
            name, other = f"llama/{busy}", f"llama/{1 - busy}"
            assert await verb(s, "replica", "drain", name, "--reason", "new kernel", "--wait", "0.3") == 1
            assert capsys.readouterr().out == f"{name} is draining and holds 1 running, 0 unproved\n"
            assert await verb(s, "replica", "list") == 0
            lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "/" in line}
            assert (lines[name][1:4], lines[name][-1]) == (["draining", "closed", "1"], "drain")
            assert lines[other][1:4] == ["ready", "closed", "0"]
            client.close()
            assert await verb(s, "replica", "drain", name, "--reason", "still", "--wait", "10") == 0
            assert capsys.readouterr().out == f"{name} is draining and holds nothing\n"
            assert await verb(s, "replica", "resume", name, "--reason", "done") == 0
            assert capsys.readouterr().out == f"{name} is ready\n"
            assert await verb(s, "replica", "withdraw", name, "--reason", "scrapped", "--wait", "10", "--json") == 0
            assert json.loads(capsys.readouterr().out) == {"replica": name, "state": "forgotten"}
            assert await verb(s, "replica", "list", "--json") == 0
            assert list(json.loads(capsys.readouterr().out)) == [other]
            assert await verb(s, "replica", "withdraw", other, "--reason", "too") == 2
            assert "the last replica of its pool" in capsys.readouterr().err

    run("uvloop", steps())


def test_H2_the_admin_key_comes_from_the_file_or_the_environment(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with scene(server={"admin_key": "env:ADMIN"}) as s:
            assert await verb(s, "ledger", "audit") == 2
            assert "wants its admin key" in capsys.readouterr().err
            monkeypatch.setenv("HEADWORKS_ADMIN_KEY", ENVIRONMENT["ADMIN"])
            assert await verb(s, "ledger", "audit") == 0
            monkeypatch.delenv("HEADWORKS_ADMIN_KEY")
            monkeypatch.setenv("ADMIN", ENVIRONMENT["ADMIN"])
            host, port = s.app.admin_address[:2]
            file = tmp_path / "headworks.yaml"
            file.write_text(json.dumps(s.texts | {"server": {"admin": f"{host}:{port}", "admin_key": "env:ADMIN"}}))
            assert await asyncio.to_thread(headworks, ["ledger", "audit", "--config", str(file)]) == 0

    run("uvloop", steps())


def reloads(file: Path, **asked: Any) -> Reloading:
    return Reloading(file, Asked(str(file), **asked))


def test_I39_the_file_of_a_reload_is_read_and_checked_beside_the_loop(tmp_path: Path, capsys: Capture) -> None:
    """A pipe stands in for a long file: it is not at its end until the gateway has served somebody."""
    file = tmp_path / "headworks.yaml"
    os.mkfifo(file)

    async def steps() -> None:
        async with scene() as s:
            before = s.app.policy.version
            reloading = asyncio.ensure_future(reloads(file).reload(s.app, "asked"))
            slow = await asyncio.to_thread(file.open, "w")  # returns when somebody reads
            slow.write(json.dumps(s.texts | {"classes": {"interactive": {"queue": {"wait_s_max": 0.4}}}}))
            assert (await s.ask(chat())).status == 200
            assert s.app.policy.version == before
            slow.close()
            await reloading
            assert s.app.policy.version != before
            file.unlink()
            file.write_text("pools: {}")
            with pytest.raises(ConfigError):
                await reloads(file).reload(s.app, "asked")
            assert s.app.policy.classes["interactive"].wait_s_max == 0.4

    run("uvloop", steps())
    said = capsys.readouterr()
    assert "reloaded, policy " in said.out and "not reloaded: " in said.err


def test_H4_a_reload_keeps_what_the_command_line_said(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "headworks.yaml"

    async def steps() -> None:
        async with scene(server={"mode": "observe"}) as s:
            texts = s.texts | {"server": {key: text for key, text in s.texts["server"].items() if key != "mode"}}
            file.write_text(json.dumps(texts))
            assert s.app.policy.observe
            number = s.app.policy.number
            await reloads(file, observe=True).reload(s.app, "asked")
            assert s.app.policy.observe and s.app.policy.number > number
            await reloads(file).reload(s.app, "asked")
            assert not s.app.policy.observe
            number = s.app.policy.number
            with pytest.raises(ConfigError):
                await reloads(file, workers=2).reload(s.app, "asked")
            assert s.app.policy.number == number

    run("uvloop", steps())
    assert "not reloaded: " in capsys.readouterr().err
