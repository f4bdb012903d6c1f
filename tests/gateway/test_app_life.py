"""The gateway's own life: readiness, observe mode, reload and drain, and what its metrics say afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene
from prometheus_client.parser import text_string_to_metric_families

from headworks.config import build
from headworks.core import events
from headworks.gateway.dialects.table import DIALECTS, Dialect
from headworks.gateway.metrics_table import METRICS, PREFIX

both_loops = pytest.mark.parametrize("loop", LOOPS)


async def samples(s: Scene) -> dict[str, Any]:
    """Sample name with its labels → value, read by another parser than ours."""
    answer = await s.admin("/metrics")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith(PREFIX)
        known = family.name.removeprefix(PREFIX)
        assert known in METRICS or f"{known}_total" in METRICS, known
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if value)
            found[f"{sample.name.removeprefix(PREFIX)}{{{labels}}}"] = sample.value
    return found


def test_F1_every_arrival_is_counted_once_by_how_it_ended() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        async with scene(tenants=tenants, classes={"interactive": {"on_tenant_full": "refuse"}}) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=100))
            await first_event(client)
            assert (await s.ask(chat(key="ACME_KEY"))).status == 429
            await rest_of_stream(client)
            client.send(chat(key="ACME_KEY", stream=True, tokens=1500))
            await first_event(client)
            client.close()
            await s.settled()
            found = await samples(s)
            base = "attempt=first,class=interactive,model=tiny,outcome="
            assert found[f"requests_total{{{base}completed,tenant=acme}}"] == 1
            assert found[f"requests_total{{{base}cancelled,tenant=acme}}"] == 1
            refused = f"{base}refused,reason=tenant_capacity_exceeded,tenant=acme"
            assert found[f"requests_total{{{refused}}}"] == 1
            assert sum(value for name, value in found.items() if name.startswith("requests_total{")) == 3
            assert found["verdict_failures_total{check=tenant,scope=tenant}"] == 1
            assert found["releases_total{evidence=E1,pool=llama}"] == 1
            assert found["releases_total{evidence=E3a,pool=llama}"] == 1
            assert found["tokens_total{class=interactive,kind=output,model=tiny,tenant=acme}"] >= 101
            assert found["tokens_total{class=interactive,kind=wasted,model=tiny,tenant=acme}"] >= 1
            assert found["refused_total{client=acme/ACME_KEY,reason=tenant_capacity_exceeded,tenant=acme}"] == 1
            assert found["ttft_seconds_count{class=interactive,model=tiny,tenant=acme}"] == 1
            assert found["replica_state{replica=llama/0,state=ready}"] == 1
            assert found["ledger_available{}"] == 1
            assert found["upstream_attempts_total{outcome=completed,replica=llama/0}"] == 1
            assert not any(name.startswith("reserved_tokens") and value for name, value in found.items())

    run("uvloop", steps())


def test_F12_ready_when_the_ledger_answers_and_an_engine_is_there() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool={"observe": {"every_s": 0.05, "stale_s": 0.2, "forget_s": 0.4}}) as s:
            assert (await s.admin("/readyz")).status_code == 200
            engine.die()
            await s.until(lambda: s.app.obstacles() != [])
            answer = await s.admin("/readyz")
            assert answer.status_code == 503
            assert answer.json()["obstacles"][0].startswith("No engine of the pool llama is ready.")
            engine.restart()
            await s.until(lambda: s.app.obstacles() == [])

    run("uvloop", steps())


def test_F3_observing_refuses_nothing_and_writes_down_what_it_would_have() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        classes = {"interactive": {"on_tenant_full": "refuse"}}
        async with scene(tenants=tenants, classes=classes, server={"mode": "observe"}) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=100))
            await first_event(client)
            answer = await s.ask(chat("Idempotency-Key: k2", key="ACME_KEY"))
            assert answer.status == 200
            assert (await rest_of_stream(client))[1]
            client.close()
            await s.settled()
            records = s.records("k2")
            assert [(record["kind"], record["outcome"]) for record in records] == [
                ("decision", "refuse"),
                ("decision", "admit"),
                ("outcome", "completed"),
            ]
            assert records[0]["reason"] == "tenant_capacity_exceeded"
            assert (await samples(s))[f"policy_info{{ledger=memory,mode=observe,policy_version={s.app.policy.version}}}"] == 1

    run("uvloop", steps())


def test_I39_a_reload_decides_what_comes_and_leaves_what_runs() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 500}}
        async with scene(tenants=tenants, classes={"interactive": {"on_tenant_full": "refuse"}}) as s:
            before = s.app.policy.version
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", key="ACME_KEY", stream=True, tokens=200))
            await first_event(client)
            tightened = s.text(tenants={"acme": {"active_tokens_max": 50}})
            await s.reload(tightened)
            assert s.app.policy.version != before
            answer = await s.ask(chat("Idempotency-Key: k2", key="ACME_KEY", tokens=4))
            assert (answer.status, answer.code) == (429, "tenant_capacity_exceeded")
            assert answer.json()["headworks"]["policy_version"] == s.app.policy.version
            body, ended = await rest_of_stream(client)
            assert ended and b"[DONE]" in body, "no kill by a limit that was lowered"
            client.close()
            await s.settled()
            assert s.records("k1")[0]["policy_version"] == before
            assert (await s.ask(chat(key="ACME_KEY", tokens=4))).status == 200

    run("uvloop", steps())


def test_H2_a_reload_takes_keys_in_and_out() -> None:
    async def steps() -> None:
        async with scene(tenants={"acme": {"keys": ["env:ACME_KEY"]}}, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=100))
            await first_event(client)
            assert (await s.ask(chat(key="BATCHCO_KEY"))).status == 401
            s.texts["tenants"] = {"batchco": {"keys": ["env:BATCHCO_KEY"]}}
            await s.reload(s.text())
            assert (await s.ask(chat(key="BATCHCO_KEY"))).status == 200
            assert (await s.ask(chat(key="ACME_KEY"))).status == 401
            assert (await rest_of_stream(client))[1], "its tenant is gone, and what ran runs out"
            client.close()

    run("uvloop", steps())


def test_I39_a_reload_says_what_only_a_restart_can_change() -> None:
    async def steps() -> None:
        async with scene() as s:
            config = s.text(server={"listen": "127.0.0.1:1"}, ledger={"lease_s": 3})
            assert s.app.fixed(build.settings(config, ENVIRONMENT)) == ["listen", "lease_s"]
            with_key = s.text(server={"admin_key": "env:ADMIN"})
            assert s.app.fixed(build.settings(with_key, ENVIRONMENT)) == ["admin_key"]
            started, s.app.settings = s.app.settings, build.settings(with_key, ENVIRONMENT)
            assert s.app.fixed(build.settings(with_key, {**ENVIRONMENT, "ADMIN": "another-admin-key"})) == ["admin_key"]
            assert s.app.fixed(build.settings(with_key, dict(ENVIRONMENT))) == [], "the same secret, read again"
            s.app.settings = started
            replicas = s.texts["pools"]["llama"]["replicas"]
            replicas.append({"url": "http://127.0.0.1:1", "engine": "vllm"})
            assert s.app.fixed(build.settings(s.text(), ENVIRONMENT)) == [], "replicas may come and go"
            replicas[0] = {"url": "http://127.0.0.1:2", "engine": "vllm"}
            (said,) = s.app.fixed(build.settings(s.text(), ENVIRONMENT))
            assert said == "the address of llama/0 (a replica with another address wants another name)"
            other = s.text(pools={"second": {"replicas": [{"url": "http://127.0.0.1:3", "engine": "vllm"}]}})
            assert s.app.fixed(build.settings(other, ENVIRONMENT))[0] == "pools"

    run("uvloop", steps())


def test_A2_a_reload_judges_again_what_waits() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 500}}
        async with scene(tenants=tenants, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=300, ignore_eos=True))
            await first_event(client)
            asking = asyncio.ensure_future(s.ask(chat(key="ACME_KEY", tokens=300, ignore_eos=True)))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            await s.reload(s.text(tenants={"acme": {"active_tokens_max": 100}}))
            answer = await asking
            assert (answer.status, answer.code) == (400, "request_exceeds_capacity")
            assert (await rest_of_stream(client))[1]
            client.close()

    run("uvloop", steps())


@both_loops
def test_I41_draining_lets_streams_end_and_is_not_ready(loop: str) -> None:
    async def steps() -> None:
        async with scene(server={"drain_s": 5}) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=120))
            await first_event(client)
            address = s.app.address[:2]
            stopping = asyncio.ensure_future(s.app.stop())
            await asyncio.sleep(0.05)
            answer = await s.admin("/readyz")
            assert answer.status_code == 503
            assert answer.json()["obstacles"][0] == "This gateway is draining."
            refused = await s.ask(chat())
            assert (refused.status, refused.code, refused.fields["retry-after"]) == (503, "draining", "1")
            body, ended = await rest_of_stream(client)
            assert ended and b"[DONE]" in body
            await asyncio.wait_for(stopping, 3.0)
            assert s.charged() == [] and s.inside() == 0
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)

    run(loop, steps())


@both_loops
def test_I41_at_the_limit_streams_are_cut_told_so_and_proved_stopped(loop: str) -> None:
    async def steps() -> None:
        async with scene(server={"drain_s": 0.3}) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=1500))
            await first_event(client)
            stopping = asyncio.ensure_future(s.app.stop())
            body, ended = await rest_of_stream(client)
            assert not ended
            assert b'"code":"draining"' in body.split(b"\n\n")[-2]
            await asyncio.wait_for(stopping, 4.0)
            assert s.charged() == [] and s.inside() == 0
            assert s.outcome("k1")["evidence"] == "E3a"

    run(loop, steps())


def test_I41_what_waits_and_cannot_start_is_answered_at_once() -> None:
    async def steps() -> None:
        async with scene(pool={"active_requests_max": 1}, classes=PATIENT, server={"drain_s": 2}) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=100))
            await first_event(client)
            asking = asyncio.ensure_future(s.ask(chat()))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            stopping = asyncio.ensure_future(s.app.stop())
            answer = await asyncio.wait_for(asking, 3.0)
            assert (answer.status, answer.code) == (503, "draining")
            assert answer.fields["retry-after"] == "1"
            assert (await rest_of_stream(client))[1]
            await stopping

    run("uvloop", steps())


def test_F12_faults_of_our_own_are_500_and_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps() -> None:
        async with scene() as s:
            with monkeypatch.context() as broken:
                broken.setitem(DIALECTS, "/v1/chat/completions", Dialect("/v1/chat/completions", None))  # type: ignore[arg-type]
                answer = await s.ask(chat())
            assert answer.status == 500
            assert (await s.ask(chat())).status == 200
            assert s.app.server.counters.faults == 1

    run("uvloop", steps())
    assert "TypeError" in caplog.text


@pytest.mark.parametrize(
    "kind", [events.Arrived, events.Tick, events.FirstByte, events.ReplicaSampled], ids=lambda one: one.__name__
)
def test_F12_a_fault_in_the_gate_costs_that_event_and_nothing_beside_it(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        async with scene(ledger={"lease_s": 2}) as s:
            handlers = s.app.gate._handlers
            handler = handlers[kind]

            def fail_once(event: Any, now_s: float) -> None:
                handlers[kind] = handler
                raise ZeroDivisionError

            handlers[kind] = fail_once
            answer = await s.ask(chat("Idempotency-Key: k1", stream=True))
            await s.until(lambda: handlers[kind] is handler, 5.0)
            assert answer.status == (500 if kind is events.Arrived else 200)
            assert s.app.accounts.alarms == {"gateway_fault": 1}
            await asyncio.sleep(2.2)  # longer than a lease: time goes on, and with it the heartbeats
            assert s.app.obstacles() == []
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())
    assert f"{kind.__name__} could not be handled" in caplog.text


def test_F12_what_we_fail_to_send_is_answered_and_costs_nothing() -> None:
    async def steps() -> None:
        async with scene() as s:
            clock_s, s.app.proxy._clock_s = s.app.proxy._clock_s, None  # type: ignore[assignment]
            answer = await s.ask(chat("Idempotency-Key: k1"))
            assert (answer.status, answer.code) == (500, "internal_error")
            await s.settled()
            assert (s.engines[0].requests, s.app.answers.total_bytes) == (0, 0)
            assert s.app.accounts.alarms == {"gateway_fault": 1}
            s.app.proxy._clock_s = clock_s
            assert (await s.ask(chat("Idempotency-Key: k1"))).status == 200

    run("uvloop", steps())


def test_F12_what_we_fail_to_send_after_a_wait_is_answered_to_all_who_share_it() -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT, pool={"active_requests_max": 1}) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=60))
            await first_event(client)
            asking = asyncio.gather(*(s.ask(chat("Idempotency-Key: k1")) for _ in range(2)))
            await s.until(lambda: len(s.app.gate._desk.lives) == 3)
            s.app.proxy._clock_s = None  # type: ignore[assignment]
            assert (await rest_of_stream(client))[1]
            answers = await asyncio.wait_for(asking, 5.0)
            assert [(answer.status, answer.code) for answer in answers] == 2 * [(500, "internal_error")]
            assert s.app.accounts.alarms == {"gateway_fault": 1}

    run("uvloop", steps())


def test_F12_what_may_have_been_sent_when_we_failed_is_charged_until_the_engine_was_counted() -> None:
    async def steps() -> None:
        async with scene() as s:
            (engine,) = s.app.engines.values()
            run_there, engine.run = engine.run, None  # type: ignore[assignment, method-assign]
            answer = await s.ask(chat())
            assert (answer.status, answer.code) == (502, "upstream_lost")
            assert [one.state for one in s.charged()] == ["CANCELLING"]
            engine.run = run_there  # type: ignore[method-assign]
            await s.until(lambda: not s.charged(), 15.0)
            assert s.outcome(answer.fields["x-request-id"])["evidence"] == "E3b"
            assert (await s.ask(chat())).status == 200

    run("uvloop", steps())
