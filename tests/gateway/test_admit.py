"""Sessions and dry runs over HTTP, on a whole gateway in front of a fake engine (B1, B14)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, completion, run, scene

from headworks.core import events

both_loops = pytest.mark.parametrize("loop", LOOPS)
TENANTS = {
    "tenants": {
        "acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 4000},
        "batchco": {"keys": ["env:BATCHCO_KEY"]},
    }
}
ACME, BATCHCO = "Authorization: Bearer acme-key-of-the-test", "Authorization: Bearer batchco-key-of-the-test"


def request(method: str, path: str, *headers: str, body: Any = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", *headers, f"Content-Length: {len(text)}"]
    if body is not None:
        lines.append("Content-Type: application/json")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


async def opened(s: Scene, tokens: int, *headers: str, **more: Any) -> str:
    answer = await s.ask(request("POST", "/admit/session", *headers, body={"tokens": tokens, **more}))
    assert answer.status == 200, answer.body
    told = answer.json()
    assert told["tokens"] == tokens
    return str(told["session"])


async def closed(s: Scene, session: str, *headers: str) -> dict[str, Any]:
    answer = await s.ask(request("DELETE", f"/admit/session/{session}", *headers))
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json()
    return told


def held(s: Scene) -> list[int]:
    return [s.held(scope) for scope in ("tenant:acme", "pool:llama", "sessions:llama")]


@both_loops
def test_B14_a_session_is_held_spent_by_its_calls_and_returned_once(loop: str) -> None:
    async def steps() -> None:
        async with scene(**TENANTS) as s:
            session = await opened(s, 2000, ACME, deadline_s=600)
            assert held(s) == [2000, 2000, 2000]
            spent = 0
            for ask in (chat, completion, chat):
                answer = await s.ask(ask(ACME, f"Headworks-Session: {session}", tokens=40))
                assert answer.status == 200
                usage = answer.json()["usage"]
                spent += usage["prompt_tokens"] + usage["completion_tokens"]
                await s.until(lambda: not s.app.gate._desk.runs)
                assert held(s) == [2000 - spent] * 3
            told = await closed(s, session, ACME)
            assert told == {
                "session": session,
                "tokens": 2000,
                "spent_tokens": spent,
                "running_tokens": 0,
                "returned_tokens": 2000 - spent,
                "ended": "closed",
            }
            assert held(s) == [0, 0, 0]
            assert await closed(s, session, ACME) == told, "said again, and nothing comes back again"
            assert held(s) == [0, 0, 0]
            await s.settled()

    run(loop, steps())


@both_loops
def test_B14_a_session_belongs_to_the_key_that_opened_it(loop: str) -> None:
    """Another key's call with its id is refused, its DELETE finds nothing, and no answer says that it is there."""

    async def steps() -> None:
        async with scene(**TENANTS) as s:
            session = await opened(s, 2000, ACME)
            answer = await s.ask(chat(BATCHCO, f"Headworks-Session: {session}"))
            assert (answer.status, answer.fields["x-overload-reason"]) == (429, "session_exhausted")
            unknown = await s.ask(chat(BATCHCO, f"Headworks-Session: {'0' * 32}"))
            assert (unknown.status, unknown.json()["error"]) == (429, answer.json()["error"])
            message = answer.json()["error"]["message"]
            assert message.startswith("The session has 0 tokens left; this request needs ")
            for name in (session, "0" * 32, "not-a-session"):
                gone = await s.ask(request("DELETE", f"/admit/session/{name}", BATCHCO))
                assert (gone.status, gone.json()["error"]["code"]) == (404, "not_found")
            assert (await s.ask(request("DELETE", f"/admit/session/{session}"))).status == 401
            assert held(s) == [2000, 2000, 2000]
            assert (await closed(s, session, ACME))["returned_tokens"] == 2000

    run(loop, steps())


def test_B14_what_is_wrong_with_a_session_asked_for_is_said() -> None:
    async def steps() -> None:
        async with scene(**TENANTS) as s:
            for body in (
                {},
                {"tokens": 0},
                {"tokens": 1.5},
                {"tokens": 10, "minutes": 1},
                {"tokens": 10, "deadline_s": 1e9},
                [],
            ):
                answer = await s.ask(request("POST", "/admit/session", ACME, body=body))
                assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_request"), body
                assert answer.fields["x-should-retry"] == "false"
            answer = await s.ask(request("POST", "/admit/session", ACME, body={"tokens": 10, "model": "other"}))
            assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
            answer = await s.ask(chat(ACME, "Headworks-Session: mine"))
            assert (answer.status, answer.json()["error"]["code"]) == (429, "session_exhausted")
            assert (await s.ask(request("GET", "/admit/session", ACME))).status == 405
            assert (await s.ask(request("POST", "/admit/session/x", ACME, body={}))).status == 405
            assert (await s.ask(request("POST", "/admitted", ACME, body={}))).status == 404

    run("uvloop", steps())


def test_B14_refused_sessions_say_what_would_fit_and_when_to_come_back() -> None:
    """More than the part of the pool: never. What others of the tenant have open: by its limit, after its class's wait."""

    async def steps() -> None:
        async with scene(**TENANTS) as s:
            answer = await s.ask(request("POST", "/admit/session", ACME, body={"tokens": 2463}))
            assert (answer.status, answer.json()["error"]["code"]) == (400, "request_exceeds_capacity")
            assert answer.json()["error"]["message"] == (
                "The request needs 2,463 tokens; sessions:llama can never hold more than 2,457."
            )
            session = await opened(s, 2000, ACME)
            answer = await s.ask(request("POST", "/admit/session", ACME, body={"tokens": 500}))
            assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_timeout")
            assert int(answer.fields["retry-after-ms"]) > 0
            spent = await s.ask(chat(ACME, f"Headworks-Session: {session}", tokens=20, n=60))
            assert (spent.status, spent.json()["error"]["code"]) == (429, "session_exhausted")
            await closed(s, session, ACME)
            await closed(s, await opened(s, 500, ACME), ACME)

    run("uvloop", steps())


@both_loops
def test_B14_a_flood_interrupts_whoever_has_no_session(loop: str) -> None:
    """Another tenant keeps every place and the queue full: calls of a session run, without one some are refused."""

    async def steps() -> None:
        quick = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20, "requests_max": 4}}}
        async with scene(pool={"discipline": {"kind": "fifo"}}, classes=quick, **TENANTS) as s:
            session = await opened(s, 2000, ACME)
            flooding = True

            async def flood() -> None:
                while flooding:
                    await s.ask(chat(BATCHCO, tokens=60))

            floods = [asyncio.create_task(flood()) for _ in range(40)]
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] >= 4)
            inside = [(await s.ask(chat(ACME, f"Headworks-Session: {session}", tokens=20))).status for _ in range(12)]
            without = [(await s.ask(chat(ACME, tokens=20))).status for _ in range(12)]
            flooding = False
            await asyncio.gather(*floods)
            assert inside == [200] * 12
            assert 429 in without
            await closed(s, session, ACME)

    run(loop, steps(), within_s=60)


def test_B14_a_client_that_leaves_while_its_session_is_being_opened_leaves_none() -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, **TENANTS) as s:
            session = await opened(s, 2000, ACME)
            client = await s.connect()
            client.send(request("POST", "/admit/session", ACME, body={"tokens": 1000}))
            await s.until(lambda: len(s.app.gate._desk.lives) == 1)
            client.close()
            await s.until(lambda: not s.app.gate._desk.lives)
            await closed(s, session, ACME)
            await asyncio.sleep(0)
            assert held(s) == [0, 0, 0]

    run("uvloop", steps())


def test_B14_it_survives_a_restart_of_its_gateway(tmp_path: Path) -> None:
    """With the ledger in a file: the next process knows it, its calls and what it has spent."""

    async def steps() -> None:
        async with scene(ledger={"url": f"sqlite:{tmp_path}/ledger.db"}, **TENANTS) as s:
            session = await opened(s, 2000, ACME)
            answer = await s.ask(chat(ACME, f"Headworks-Session: {session}", tokens=40))
            spent = answer.json()["usage"]["total_tokens"]
            await s.until(lambda: not s.app.gate._desk.runs)
            await s.restart()
            assert held(s) == [2000 - spent] * 3
            assert (await s.ask(chat(ACME, f"Headworks-Session: {session}", tokens=40))).status == 200
            await s.until(lambda: not s.app.gate._desk.runs)
            told = await closed(s, session, ACME)
            assert (told["spent_tokens"], told["returned_tokens"]) == (2 * spent, 2000 - 2 * spent)
            assert held(s) == [0, 0, 0]

    run("uvloop", steps())


@both_loops
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
def test_B1_admit_says_what_a_body_would_be_told_and_runs_nothing(ask: Any, loop: str) -> None:
    async def steps() -> None:
        async with scene(**TENANTS) as s:
            _, _, body = ask(tokens=40).partition(b"\r\n\r\n")
            answer = await s.ask(request("POST", "/admit", ACME, body=json.loads(body)))
            assert answer.status == 200
            told = answer.json()
            assert (told["outcome"], told["status"], told["reason"], told["promise"]) == ("admit", 200, None, False)
            assert told["note"].startswith("This is what would be decided now. It holds nothing")
            assert told["work"]["output_tokens"] == 40
            assert told["forecast"]["wait_s"] == 0.0
            assert all(verdict["passed"] for verdict in told["verdicts"])
            assert {verdict["check"] for verdict in told["verdicts"]} >= {"tenant", "memory", "compute", "fairness"}
            large = {**json.loads(body), "n": 128}
            told = (await s.ask(request("POST", "/admit", ACME, body=large))).json()
            assert (told["outcome"], told["reason"], told["status"]) == ("refuse", "request_exceeds_capacity", 400)
            wrong = await s.ask(request("POST", "/admit", ACME, body={"model": "tiny", "priority": 1, **json.loads(body)}))
            assert (wrong.status, wrong.json()["error"]["code"]) == (400, "field_not_allowed")
            assert s.inside() == 0
            assert held(s)[:2] == [0, 0]
            assert s.app.gate._desk.arrivals == 0

    run(loop, steps())


def test_B1_a_body_nested_without_end_is_refused_as_what_it_is() -> None:
    async def steps() -> None:
        async with scene(**TENANTS) as s:
            for field in ("messages", "input", "other"):
                body = f'{{"model":"tiny","{field}":{"[" * 100_000}{"]" * 100_000}}}'.encode()
                head = ["POST /admit HTTP/1.1", "Host: gateway", ACME, "Content-Type: application/json"]
                answer = await s.ask("\r\n".join([*head, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n" + body)
                assert answer.status == 400, field
                assert answer.json()["error"]["code"] in ("invalid_request", "field_not_allowed")

    run("uvloop", steps())


def test_B1_a_request_that_is_only_asked_about_is_not_written_down() -> None:
    async def steps() -> None:
        async with scene(**TENANTS) as s:
            _, _, body = chat(tokens=4).partition(b"\r\n\r\n")
            for path, name in (("/admit", "asked-about"), ("/v1/chat/completions", "sent")):
                answer = await s.ask(request("POST", path, ACME, f"X-Request-Id: {name}", body=json.loads(body)))
                assert (answer.status, answer.fields["x-request-id"]) == (200, name)
            assert s.records("asked-about") == []
            assert s.records("sent")

    run("uvloop", steps())


def test_B14_a_fault_while_one_is_being_opened_leaves_nothing_held() -> None:
    """Its client is told so; nobody would know the name of what is opened after that."""

    async def steps() -> None:
        async with scene(classes=PATIENT, **TENANTS) as s:
            session = await opened(s, 2000, ACME)
            handlers = s.app.gate._handlers
            handler = handlers[events.Arrived]

            def fail_once(event: Any, now_s: float) -> None:
                handlers[events.Arrived] = handler
                handler(event, now_s)
                raise ZeroDivisionError

            handlers[events.Arrived] = fail_once
            answer = await s.ask(request("POST", "/admit/session", ACME, body={"tokens": 1000}))
            assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
            await s.until(lambda: not s.app.gate._desk.lives)
            assert (s.app.runner._calls, s.app.runner._expected) == ({}, {})
            await closed(s, session, ACME)
            assert held(s) == [0, 0, 0]
            assert s.app.accounts.alarms == {"gateway_fault": 1}

    run("uvloop", steps())
