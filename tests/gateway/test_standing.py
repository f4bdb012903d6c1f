"""How things stand, as /admin/snapshot says it: what waits and how long, engines together, orphans, sums of series (F9)."""

from __future__ import annotations

from typing import Any

from app_scene import PATIENT, chat, first_event, run, scene

from headworks.core.types import Charge, Owner, Reservation
from headworks.gateway.metrics import Registry
from headworks.gateway.standing import orphans_of
from headworks.gateway.sums import Sums

TENANTS = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
OWNER = Owner("gateway", "boot")


def test_F9_a_line_says_how_long_its_head_has_waited_and_its_class_how_much_waits() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=PATIENT) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=1_900))
            assert (await first_event(running)).status == 200
            waiting = await s.connect()
            waiting.send(chat(key="ACME_KEY", tokens=8))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            look = (await s.admin("/admin/snapshot")).json()
            ((flow, line),) = look["pools"]["llama"]["queue"].items()
            assert (flow, line["requests"]) == ("interactive/acme", 1)
            assert line["tokens"] == look["pools"]["llama"]["queued_tokens"] > 8
            assert 0.0 < line["head_waited_s"] < 20.0
            assert line["wait_s"] is None, "nobody has measured how fast it drains"
            classes = {name: row["queued_requests"] for name, row in look["classes"].items()}
            assert classes == {"interactive": 1, "batch": 0, "bulk": 0}
            engines = look["pools"]["llama"]["engines"]
            assert (engines["all"], engines["ready"]) == (1, 1)
            (replica,) = look["pools"]["llama"]["replicas"].values()
            assert replica["evidence"] == ["E1", "E3a", "E3b", "E4"]
            assert look["obstacles"] == [] and look["decided"]["queue"]["total"] == 1
            running.close()
            waiting.close()

    run("uvloop", steps())


def reservation(name: str, state: str, reserved_ms: int, *charges: tuple[str, str, int]) -> Reservation:
    what: dict[str, Any] = {"key": None, "fingerprint": "", "was": "", "seen": True, "owner": OWNER, "reserved_by": OWNER}
    ends: dict[str, Any] = {"usage": None, "evidence": "", "started_ms": 0, "ended_ms": 0}
    held = tuple(Charge(*charge) for charge in charges)
    return Reservation(
        execution=name, state=state, replica="r", incarnation=1, charges=held, reserved_ms=reserved_ms, **what, **ends
    )


def test_F9_orphans_are_counted_by_pool_with_the_age_of_the_oldest() -> None:
    records = [
        reservation("a", "ORPHANED", 1_000, ("pool:llama", "tokens", 70), ("tenant:acme", "tokens", 70)),
        reservation("b", "ORPHANED", 4_000, ("pool:llama", "tokens", 30), ("pool:llama", "requests", 1)),
        reservation("c", "ORPHANED", 5_500, ("pool:small", "tokens", 5)),
        reservation("d", "RUNNING", 10, ("pool:llama", "tokens", 900)),
    ]
    assert orphans_of(records, 6_000) == {
        "llama": {"requests": 2, "tokens": 100, "oldest_s": 5.0},
        "small": {"requests": 1, "tokens": 5, "oldest_s": 0.5},
    }
    assert orphans_of([], 6_000) == {}


def test_F9_series_are_added_up_by_label_and_new_ones_join() -> None:
    registry = Registry(list)
    registry.allow("tenant", ["acme", "batchco"])
    registry.allow("class", ["bulk"])
    registry.allow("model", ["m", "n"])
    sums = Sums(registry)
    assert sums.total("goodput_total", 0) == {}
    registry.counter("goodput_total", "acme", "bulk", "m").add(3)
    registry.counter("goodput_total", "acme", "bulk", "n").add(4)
    assert sums.total("goodput_total", 0) == {("acme",): 7}
    registry.counter("goodput_total", "batchco", "bulk", "m").add(5)
    registry.counter("goodput_total", "acme", "bulk", "m").add(1)
    assert sums.total("goodput_total", 0) == {("acme",): 8, ("batchco",): 5}
    assert sums.total("goodput_total", 1) == {("bulk",): 13}
    registry.histogram("ttft_seconds", "acme", "bulk", "m").observe(0.007)
    registry.histogram("ttft_seconds", "batchco", "bulk", "m").observe(0.007)
    registry.histogram("ttft_seconds", "batchco", "bulk", "m").observe(1e9)
    counts = sums.counts("ttft_seconds", 1)["bulk",]
    assert (sum(counts), max(counts), counts[-1]) == (3, 2, 1)
