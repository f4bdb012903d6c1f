"""What others do, from their formulas: each rule's own arithmetic, and that all stand in the same world as the gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_scenario import SMALL, invoke, scenario_file

from headworks.core import events
from headworks.core.effects import Abort, Effect, Record, Reply, Run
from headworks.core.policy import ClassPolicy, DisciplinePolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import Capacity, ReplicaSample, Request, RequestKey, Usage
from headworks.sim.baseline_published import RULES, Gradient2, Saturation
from headworks.sim.baselines import Baseline, Rule, Tuning
from headworks.sim.batching import ContinuousBatching
from headworks.sim.compare import as_json, compared, run
from headworks.sim.oracle import Oracle
from headworks.sim.presets import tiny
from headworks.sim.scenario import load
from headworks.sim.traffic import Planned

REPLICA = "main/0"
CLASSES = {
    "interactive": ClassPolicy("interactive", ttft_slo_s=1.0, wait_s_max=1.0),
    "batch": ClassPolicy("batch", ttft_slo_s=5.0, wait_s_max=5.0),
    "bulk": ClassPolicy("bulk", ttft_slo_s=15.0, wait_s_max=15.0),
}


def policy() -> Policy:
    tenants = {name: TenantPolicy(name, classes=tuple(CLASSES)) for name in ("acme", "other")}
    pool = PoolPolicy("main", ("model",), (ReplicaPolicy(REPLICA),), discipline=DisciplinePolicy())
    return Policy("test", 1, CLASSES, tenants, {"main": pool})


class Desk:
    """One baseline, and what it did to whom."""

    def __init__(self, kind: str = "no_control", rule: Rule | None = None, kv_tokens: int = 100_000, **tuning: float) -> None:
        numbers = {name: int(value) if name in ("concurrency", "queue_max") else value for name, value in tuning.items()}
        self.rule = rule or RULES[kind](Tuning(**numbers), policy(), 1)  # type: ignore[arg-type]
        self.gate = Baseline(self.rule, policy(), "boot")
        self.sent: list[str] = []
        self.refused: dict[str, str] = {}
        self.aborted: list[str] = []
        self.executions: dict[str, str] = {}
        capacity = Capacity(REPLICA, "simulated", "", "1", 8_192, kv_tokens, 16, 64, ("E1",))
        self.tell(events.ReplicaDescribed(capacity), 0.0)

    def tell(self, event: events.Event, now_s: float) -> list[Effect]:
        effects = self.gate.handle(event, now_s)
        for effect in effects:
            if isinstance(effect, Run):
                self.sent.append(effect.id)
                self.executions[effect.id] = effect.execution.id
            elif isinstance(effect, Reply):
                self.refused[effect.id] = effect.decision.reason
            elif isinstance(effect, Abort):
                self.aborted.append(effect.execution)
        return effects

    def arrive(
        self, id: str, now_s: float = 0.0, *, tenant: str = "acme", of: str = "interactive", prompt: int = 100, most: int = 100
    ) -> None:
        request = Request(
            id=id,
            key=RequestKey(tenant, id),
            key_given=False,
            fingerprint="",
            client=tenant,
            service_class=of,
            model="model",
            pool="main",
            prompt_bytes=4 * prompt,
            prompt_tokens=None,
            output_tokens_max=most,
            samples=1,
            stream=True,
            prefix=(),
            session=None,
            retry_count=0,
            arrived_s=now_s,
            start_by_s=float("inf"),
            finish_by_s=float("inf"),
        )
        self.tell(events.Arrived(request), now_s)

    def end(self, id: str, now_s: float, output_tokens: int = 10) -> None:
        usage = Usage(100, 0, output_tokens, 1.0, "stop", True)
        self.tell(events.Stopped(self.executions[id], usage, False), now_s)

    def sample(self, now_s: float = 0.0, *, waiting: int = 0, kv_used_ratio: float = 0.0) -> None:
        sample = ReplicaSample(REPLICA, "1", now_s, now_s, (1,), 1, waiting, kv_used_ratio, None, 0)
        self.tell(events.ReplicaSampled(sample), now_s)


# what is commonly done


def test_fixed_concurrency_sends_the_oldest_as_a_place_falls_free() -> None:
    desk = Desk("fixed_concurrency", concurrency=2)
    for id in ("a", "b", "c", "d"):
        desk.arrive(id)
    assert desk.sent == ["a", "b"]
    desk.end("b", 1.0)
    assert desk.sent == ["a", "b", "c"] and desk.refused == {}


def test_a_client_that_left_is_stopped_and_its_place_counts_until_the_engine_has_closed() -> None:
    desk = Desk("fixed_concurrency", concurrency=1)
    desk.arrive("a")
    desk.arrive("b")
    desk.tell(events.ClientGone("a"), 1.0)
    assert desk.aborted == [desk.executions["a"]] and desk.sent == ["a"]
    desk.tell(events.EngineClosed(desk.executions["a"]), 1.1)
    assert desk.sent == ["a", "b"]
    desk.tell(events.ClientGone("b"), 1.2)
    assert not desk.gate.drained()
    desk.tell(events.EngineClosed(desk.executions["b"]), 1.3)
    assert desk.gate.drained()


def test_tail_drop_refuses_whom_the_queue_has_no_place_for() -> None:
    desk = Desk("tail_drop", concurrency=1, queue_max=2)
    for id in ("a", "b", "c", "d"):
        desk.arrive(id)
    assert desk.refused == {"d": "queue_full"}


def test_queue_by_rate_refuses_who_would_wait_longer_than_promised() -> None:
    """Ten a second end, so eleven waiting are 1.1 s, and the promise is one."""
    desk = Desk("queue_by_rate", concurrency=10)
    for number in range(20):
        desk.arrive(f"{number}")
    for number in range(9):
        desk.end(f"{number}", 1.0 + number / 10)
    assert len(desk.rule.waiting) == 1
    for number in range(20, 29):
        desk.arrive(f"{number}", 1.8)
    assert desk.refused == {} and len(desk.rule.waiting) == 10
    desk.arrive("29", 1.8)
    assert desk.refused == {}
    desk.arrive("30", 1.8)
    assert desk.refused == {"30": "queue_delay_exceeded"}


def test_token_budget_holds_every_maximum_and_lets_go_of_it_at_the_end() -> None:
    desk = Desk("token_budget", kv_tokens=1_000)
    for id in ("a", "b", "c"):
        desk.arrive(id, prompt=100, most=400)
    assert desk.sent == ["a", "b"]
    desk.end("a", 0.5)
    assert desk.sent == ["a", "b", "c"]
    desk.arrive("d", 0.6, prompt=100, most=400)
    desk.tell(events.Tick(), 1.7)
    assert desk.refused == {"d": "queue_timeout"}


def test_kv_threshold_refuses_above_its_gauge_and_not_at_it() -> None:
    desk = Desk("kv_threshold", kv_ratio_max=0.85)
    desk.sample(kv_used_ratio=0.85)
    desk.arrive("a")
    desk.sample(kv_used_ratio=0.86)
    desk.arrive("b")
    assert desk.sent == ["a"] and desk.refused == {"b": "kv_saturation"}


def test_token_bucket_is_paid_by_prompts_at_once_and_by_answers_at_their_end() -> None:
    """150 at once: two prompts of 100 bring it to −50, an answer of 100 to −150; 1.5 s later it is empty, and then not."""
    desk = Desk("token_bucket", tokens_per_s=100.0, burst_s=1.5)
    for id in ("a", "b", "c"):
        desk.arrive(id)
    assert desk.sent == ["a", "b"] and desk.refused == {"c": "rate_limit_exceeded"}
    desk.end("a", 0.0, output_tokens=100)
    desk.arrive("d", 1.5)
    desk.arrive("e", 1.6)
    assert desk.sent == ["a", "b", "e"] and desk.refused["d"] == "rate_limit_exceeded"


# what was published


def test_vtc_serves_the_tenant_with_the_least_and_lifts_who_comes_back() -> None:
    """acme has 220 when other comes and is lifted to that; a2's end makes it 240, o1's end makes other 250, a3's acme 360."""
    desk = Desk("vtc", concurrency=1)
    desk.arrive("a1")
    desk.arrive("a2")
    desk.end("a1", 1.0)
    for id, tenant, prompt in (("a3", "acme", 100), ("a4", "acme", 100), ("o1", "other", 10), ("o2", "other", 10)):
        desk.arrive(id, 1.0, tenant=tenant, prompt=prompt)
    for id in ("a2", "o1", "a3"):
        desk.end(id, 2.0)
    assert desk.sent == ["a1", "a2", "o1", "a3", "o2"]


@pytest.mark.parametrize(("waiting", "kv_used_ratio", "sent"), [(4, 0.0, 1), (5, 0.0, 0), (0, 0.79, 1), (0, 0.8, 0)])
def test_utilisation_gate_closes_at_five_waiting_or_four_fifths_of_memory(
    waiting: int, kv_used_ratio: float, sent: int
) -> None:
    desk = Desk("utilisation_gate")
    desk.sample(waiting=waiting, kv_used_ratio=kv_used_ratio)
    desk.arrive("a")
    assert len(desk.sent) == sent


def test_utilisation_gate_serves_the_highest_class_first_and_lets_go_of_the_late() -> None:
    desk = Desk("utilisation_gate")
    desk.sample(waiting=5)
    desk.arrive("bulk", of="bulk")
    desk.arrive("late")
    desk.arrive("first", 0.5)
    desk.sample(1.2, waiting=4)
    assert desk.sent == ["first", "bulk"] and desk.refused == {"late": "queue_timeout"}


@pytest.mark.parametrize(("kv_used_ratio", "low", "high"), [(0.12, 5, 40), (0.28, 1000, 1000)])
def test_probabilistic_admitter_sheds_2_percent_at_015_and_everything_from_034(
    kv_used_ratio: float, low: int, high: int
) -> None:
    """s = 0.12 ÷ 0.8 = 0.15 → 300·s⁵ = 2.3 %; s = 0.35 → 1. What is not sheddable always passes."""
    desk = Desk("probabilistic")
    desk.sample(kv_used_ratio=kv_used_ratio)
    for number in range(1000):
        desk.arrive(f"{number}", of="bulk")
        desk.arrive(f"kept {number}")
    assert low <= len(desk.refused) <= high
    assert not any(id.startswith("kept") for id in desk.refused)


def test_reflective_ceiling_is_lower_for_lower_bands_and_opens_one_call_in_some() -> None:
    """s = 0.75: band 0 is open below 1; band 1's ceiling is 0.625, and one call in round(0.75 ÷ 0.25) = 3 gets through."""
    desk = Desk("reflective_ceiling")
    desk.sample(kv_used_ratio=0.48)  # s = 0.6 is below band 1's ceiling of 0.7
    desk.arrive("at once", of="batch")
    assert desk.sent == ["at once"]
    desk.sent.clear()
    desk.sample(kv_used_ratio=0.6)
    desk.arrive("interactive")
    assert desk.sent == ["interactive"]
    desk.arrive("batch", of="batch")
    assert desk.sent == ["interactive"]
    desk.tell(events.Tick(), 0.1)
    assert desk.sent == ["interactive"]
    desk.tell(events.Tick(), 0.2)
    assert desk.sent == ["interactive", "batch"]


def test_saturation_is_the_mean_over_replicas_of_each_ones_worse_part() -> None:
    rule = Saturation(Tuning(), policy(), 1)
    for name, waiting, ratio in (("main/0", 5, 0.0), ("main/1", 1, 0.4)):
        rule.samples[name] = ReplicaSample(name, "1", 0.0, 0.0, None, 1, waiting, ratio, None, 0)
    rule.sampled(0.0)
    assert rule.saturation == pytest.approx((1.0 + 0.5) / 2)


def test_codel_serves_the_newest_first_while_its_queue_does_not_empty() -> None:
    """The interval is half of 1 s: after it, a newcomer may wait a twentieth of 0.5 s, and is served first."""
    desk = Desk("codel_lifo", concurrency=1)
    desk.arrive("running")
    desk.arrive("old", 0.0, of="batch")
    desk.arrive("older", 0.1, of="batch")
    desk.end("running", 0.2)
    assert desk.sent == ["running", "old"], "not overloaded yet: oldest first"
    desk.arrive("newest", 0.7)
    desk.end("old", 0.72)
    assert desk.sent[-1] == "newest"
    desk.arrive("short", 0.73)
    desk.tell(events.Tick(), 0.76)
    assert desk.refused == {"short": "queue_timeout"}, "0.73 + 0.025 s"


def test_gradient2_takes_a_fifth_of_what_its_gradient_wants() -> None:
    """20 → 0.8·20 + 0.2·(20·clip(1.5·1, 0.5, 1) + 4) = 20.8; with a first token five times slower than the mean: less."""
    rule = Gradient2(Tuning(prefill_token_s=0.001), policy(), 1)
    desk = Desk(rule=rule)
    for number in range(20):
        desk.arrive(f"{number}")
    assert len(desk.sent) == 20
    desk.arrive("20")
    assert desk.refused == {"20": "queue_full"}
    desk.tell(events.FirstByte(desk.executions["0"]), 0.2)  # 0.1 s beside the prompt's own 0.1 s
    assert rule.limit == pytest.approx(20.8)
    desk.tell(events.FirstByte(desk.executions["1"]), 0.6)  # 0.5 s; the mean of 600 is 0.1 + 0.4·2/601
    gradient = 1.5 * (0.1 + 0.4 * 2 / 601) / 0.5
    assert gradient < 0.5
    assert rule.limit == pytest.approx(0.8 * 20.8 + 0.2 * (20.8 * 0.5 + 4))


# the clairvoyant


def oracle(planned: list[Planned], engine: ContinuousBatching) -> Desk:
    rule = Oracle(Tuning(), policy(), 1, lambda id: planned[int(id[1:].partition(".")[0])], [engine], tiny())
    return Desk(rule=rule, kv_tokens=engine.kv_tokens)


def test_the_oracle_never_lets_memory_be_needed_twice() -> None:
    """19 blocks of 16 are 304 tokens. Three that hold 128 at their end, and a block not yet full, would need 432; two 288."""
    engine = ContinuousBatching(tiny())
    desk = oracle([Planned(0.0, 0, 16, 112, ())] * 3, engine)
    desk.arrive("r0.0")
    desk.arrive("r1.0")
    desk.arrive("r2.0")
    assert desk.sent == ["r0.0", "r1.0"]


def test_the_oracle_lets_go_of_what_is_worth_least_when_not_all_can_be_on_time() -> None:
    """64 tokens in 10 ms: 5,000 take 0.8 s of the promised one, so of these two only one can be on time. r1 has more in it."""
    settings = replace(tiny(), kv_blocks=2_000)
    planned = [Planned(0.0, 0, 128, 1, ()), Planned(0.0, 0, 5_000, 1, ()), Planned(0.0, 0, 5_000, 90, ())]
    engine = ContinuousBatching(settings)
    rule = Oracle(Tuning(), policy(), 1, lambda id: planned[int(id[1])], [engine], settings)
    desk = Desk(rule=rule, kv_tokens=engine.kv_tokens)
    for id in ("r0.0", "r1.0", "r2.0"):
        desk.arrive(id)
    assert desk.sent == ["r0.0"], "two steps' worth of prompts is enough"
    desk.tell(events.Tick(), 0.02)
    assert desk.sent == ["r0.0", "r1.0"], "r2 would be worth 90 tokens more, for memory that is held for 90 steps"
    desk.tell(events.Tick(), 1.0)
    assert desk.refused == {"r2.0": "queue_timeout"}


@pytest.mark.parametrize(("prompt_tokens", "sent"), [(5_900, ["r0.0"]), (6_100, [])])
def test_the_oracle_keeps_six_hundredths_of_a_promise_free(prompt_tokens: int, sent: list[str]) -> None:
    """At 64 tokens in 10 ms, behind a step of 10 ms, 5,900 are read after 0.932 s of the promised 1 s, 6,100 after 0.963 s."""
    settings = replace(tiny(), kv_blocks=2_000)
    planned = [Planned(0.0, 0, prompt_tokens, 1, ())]
    rule = Oracle(Tuning(), policy(), 1, lambda id: planned[0], [ContinuousBatching(settings)], settings)
    desk = Desk(rule=rule, kv_tokens=31_000)
    desk.arrive("r0.0")
    assert desk.sent == sent


def test_the_oracle_serves_by_deadline_while_all_can_be_on_time() -> None:
    planned = [Planned(0.0, 0, 128, 1, ()), Planned(0.0, 0, 64, 1, ()), Planned(0.0, 0, 16, 100, ())]
    desk = oracle(planned, ContinuousBatching(tiny()))
    desk.arrive("r0.0")
    desk.arrive("r1.0", of="bulk")
    desk.arrive("r2.0")
    desk.tell(events.Tick(), 0.02)
    assert desk.sent == ["r0.0", "r2.0", "r1.0"]


# in the same world


def test_G1_a_scenario_compares_baselines_with_the_gates_own_disciplines(tmp_path: object) -> None:
    kinds = "".join(f"  {kind}: {{kind: {kind}}}\n" for kind in RULES)
    text = SMALL.replace("disciplines: {fifo: {kind: fifo}}\n", f"disciplines:\n  fifo: {{kind: fifo}}\n{kinds}")
    found = run(load(scenario_file(tmp_path, text)), 1)  # type: ignore[arg-type]
    assert list(found["disciplines"]) == ["fifo", *RULES]
    for name, one in found["disciplines"].items():
        assert one["conservation"]["difference"] == 0 and one["arrivals"] == 10, name
    assert found["disciplines"]["no_control"]["admitted"] == 10


def test_G1_baselines_repeat_byte_for_byte(tmp_path: object) -> None:
    text = SMALL.replace("{fifo: {kind: fifo}}", "{one: {kind: probabilistic}, two: {kind: codel_lifo, concurrency: 1}}")
    comparison = load(scenario_file(tmp_path, text)).comparison()  # type: ignore[arg-type]
    assert as_json(compared(comparison, 7)) == as_json(compared(comparison, 7))


def test_a_baselines_unknown_number_is_refused_with_the_known_ones(tmp_path: object) -> None:
    text = SMALL.replace("{kind: fifo}", "{kind: tail_drop, queue_length: 3}")
    result = invoke(str(scenario_file(tmp_path, text)))  # type: ignore[arg-type]
    assert result.exit_code == 2 and "queue_length" in result.output and "queue_max" in result.output


def test_every_arrival_of_a_baseline_has_one_decision_and_one_outcome() -> None:
    desk, records = Desk("tail_drop", concurrency=1, queue_max=1), []
    for id in ("a", "b", "c"):
        desk.arrive(id)
    records += [one for one in desk.tell(events.ClientGone("b"), 0.5) if isinstance(one, Record)]
    assert [type(one.record).__name__ for one in records] == ["Outcome"]
    assert desk.refused == {"c": "queue_full"}
