"""The auditor sees each way in which a ledger and an engine can contradict each other, and nothing where they agree."""

from __future__ import annotations

from headworks.sim.auditor import Auditor, Breach, Charged
from headworks.sim.batching import ContinuousBatching
from headworks.sim.presets import tiny


def engine_with(execution: str, *, samples: int = 1) -> ContinuousBatching:
    engine = ContinuousBatching(tiny())
    engine.submit(execution, 20, 40, samples, (), 0.0)
    engine.advance(0.01)
    return engine


def breaches(auditor: Auditor, now_s: float, charged: dict[str, Charged], **engines: ContinuousBatching) -> list[Breach]:
    return [violation.breach for violation in auditor.check(now_s, charged, engines)]


def test_A5_an_honest_ledger_passes_to_the_end() -> None:
    engine, auditor = engine_with("a"), Auditor()
    for step in range(1, 40):
        engine.advance(step * 0.01)
        assert breaches(auditor, step * 0.01, {"a": Charged(60, 1)}, one=engine) == []
    engine.advance(0.4)
    assert breaches(auditor, 0.4, {}, one=engine) == []


def test_A5_free_on_cancel_is_seen_until_the_engine_lets_go() -> None:
    engine, auditor = engine_with("a"), Auditor()
    assert breaches(auditor, 0.01, {"a": Charged(60, 1)}, one=engine) == []
    engine.abort("a", 0.015)
    assert breaches(auditor, 0.015, {}, one=engine) == [Breach.FREED_EARLY]
    assert breaches(auditor, 0.02, {}, one=engine) == []


def test_A5_a_waiting_request_counts_as_inside() -> None:
    engine, auditor = engine_with("a", samples=4), Auditor()
    engine.submit("b", 20, 40, 1, (), 0.01)
    charged = {"a": Charged(240, 4), "b": Charged(60, 1)}
    assert breaches(auditor, 0.02, charged, one=engine) == []
    assert breaches(auditor, 0.02, {"a": Charged(240, 4)}, one=engine) == [Breach.FREED_EARLY]


def test_A3_what_was_never_charged_is_named() -> None:
    violations = Auditor().check(0.01, {}, {"one": engine_with("a")})
    assert [str(violation) for violation in violations] == ["at 0.010000 s a on one: never_charged (held 32 tokens, charged 0)"]


def test_A1_holding_more_than_the_charge_is_seen() -> None:
    engine = engine_with("a", samples=2)
    assert breaches(Auditor(), 0.01, {"a": Charged(60, 1)}, one=engine) == [Breach.HOLDS_MORE]
    engine.advance(0.39)
    assert breaches(Auditor(), 0.39, {"a": Charged(80, 2)}, one=engine) == [Breach.HOLDS_MORE]
    assert breaches(Auditor(overrun_tokens=20), 0.39, {"a": Charged(80, 2)}, one=engine) == []
    assert breaches(Auditor(), 0.39, {"a": Charged(120, 2)}, one=engine) == []


def test_A6_one_execution_on_two_engines_is_seen() -> None:
    both = {"one": engine_with("a"), "two": engine_with("a")}
    found = Auditor().check(0.01, {"a": Charged(60, 1)}, both)
    assert [(violation.breach, violation.engine) for violation in found] == [(Breach.RUNS_TWICE, "two")]


def test_A6_an_execution_that_runs_again_is_seen() -> None:
    engine, auditor = engine_with("a"), Auditor()
    charged = {"a": Charged(60, 1)}
    assert breaches(auditor, 0.01, charged, one=engine) == []
    engine.advance(1.0)
    assert breaches(auditor, 1.0, charged, one=engine) == []
    engine.submit("a", 20, 40, 1, (), 1.0)
    assert breaches(auditor, 1.01, charged, one=engine) == [Breach.RUNS_AGAIN]


def test_G1_more_memory_than_there_is_is_seen() -> None:
    engine = engine_with("a")
    engine.kv_tokens = 16
    violations = Auditor().check(0.01, {"a": Charged(60, 1)}, {"one": engine})
    assert [(violation.breach, violation.held, violation.charged) for violation in violations] == [
        (Breach.OVER_CAPACITY, 32, 16)
    ]
