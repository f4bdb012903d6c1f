"""Prompts from bytes: the bound, what is learnt by kind, and what a bound must not do (C1, K08)."""

from __future__ import annotations

from typing import Any

import pytest

from headworks.core import events
from headworks.core.estimate import Estimator
from headworks.core.policy import TenantPolicy
from headworks.core.types import Request, Work
from tests.core.driver import Bench, capacity, policy
from tests.core.test_estimate import NOBODY, asked, ended, pool

SMALL = TenantPolicy("acme", active_tokens_max=15_000)


def text(prompt_bytes: int, kind: str = "text", **changed: Any) -> Request:
    return asked(prompt_tokens=None, prompt_bytes=prompt_bytes, prompt_kind=kind, **changed)


def sized(estimator: Estimator, request: Request, tenant: TenantPolicy = NOBODY) -> Work:
    return estimator.work(request, pool(), tenant)


def taught(tokens_a_kilobyte: int, kind: str = "text", answers: int = 20) -> Estimator:
    estimator = Estimator()
    for _ in range(answers):
        ended(estimator, 10, text(1_000, kind), prompt=32 + tokens_a_kilobyte)
    return estimator


def test_C1_each_kind_of_content_has_a_ratio_of_its_own() -> None:
    estimator = taught(250)
    assert sized(estimator, text(4_000)).prefill_tokens == int(4_000 * 0.25 * 1.05) + 32
    assert sized(estimator, text(4_000)).basis == "learnt"
    for kind in ("wide", "dense", "tools"):
        work = sized(estimator, text(4_000, kind))
        assert (work.prefill_tokens, work.basis) == (4_032, "bytes")


def test_C1_the_densest_prompt_of_the_last_hundred_is_gone_by() -> None:
    estimator = taught(250)
    ended(estimator, 10, text(1_000), prompt=32 + 600)
    assert sized(estimator, text(1_000)).prefill_tokens == 630 + 32
    for _ in range(99 * 4):
        ended(estimator, 10, text(1_000), prompt=32 + 250)
    assert sized(estimator, text(1_000)).prefill_tokens == 630 + 32
    for _ in range(4):
        ended(estimator, 10, text(1_000), prompt=32 + 250)
    assert sized(estimator, text(1_000)).prefill_tokens == 262 + 32


def test_C1_a_ratio_is_never_above_a_token_a_byte() -> None:
    assert sized(taught(1_000), text(1_000)).prefill_tokens == 1_032


def test_C1_a_template_that_adds_more_is_known_from_the_first_prompt_that_shows_it() -> None:
    estimator = Estimator()
    assert sized(estimator, text(10)).prefill_tokens == 10 + 32
    ended(estimator, 10, text(10), prompt=390)
    assert sized(estimator, text(10)).prefill_tokens == 10 + 380
    assert sized(estimator, text(10, tenant="batchco")).prefill_tokens == 10 + 380, "it is the model's"
    assert sized(estimator, text(10, model="other")).prefill_tokens == 10 + 32


def test_C1_what_a_tokenizer_counted_has_only_its_template_added() -> None:
    estimator = Estimator()
    counted = asked(prompt_tokens=1_200, prompt_kind="counted", prompt_bytes=5_000)
    work = sized(estimator, counted)
    assert (work.prefill_tokens, work.basis) == (1_232, "counted")
    ended(estimator, 10, counted, prompt=1_300)
    assert sized(estimator, counted).prefill_tokens == 1_300
    assert sized(estimator, text(5_000)).basis == "bytes", "nothing was learnt of bytes"


def test_C1_token_ids_are_exact_and_have_no_template() -> None:
    work = sized(taught(250), asked(prompt_tokens=777))
    assert (work.prefill_tokens, work.basis) == (777, "exact")


def test_K08_a_bound_that_passes_a_limit_refuses_nobody_whose_prompt_likely_fits() -> None:
    """20,000 bytes of English are 4,000 to 5,000 tokens: it holds what its tenant may, beside its output, and runs."""
    made = Bench(policy(tenant={"active_tokens_max": 15_000}, pool={"growth": True}))
    made.arrive(1, 1, prompt_bytes=20_000, prompt_tokens=None, output_tokens_max=1_000)
    (decision,) = made.decisions()
    assert decision.outcome == "admit"
    assert (decision.work.prefill_tokens, decision.work.basis) == (14_000, "bytes")
    assert made.held("tenant:acme") == 14_000 + 250


def test_A8_its_tenant_is_charged_what_it_may_hold_and_the_memory_what_the_prompt_may_come_to() -> None:
    made = Bench(policy(tenant={"active_tokens_max": 15_000}, pool={"growth": True}), capacities=(capacity(kv_tokens=40_000),))
    made.arrive(1, 1, prompt_bytes=20_000, prompt_tokens=None, output_tokens_max=1_000)
    assert made.held("tenant:acme") == 14_000 + 250
    assert made.held("replica:p/0") == made.held("pool:p") == 20_032 + 250
    small = Bench(policy(tenant={"active_tokens_max": 15_000}, pool={"growth": True}), capacities=(capacity(kv_tokens=16_000),))
    small.arrive(1, 1, prompt_bytes=20_000, prompt_tokens=None, output_tokens_max=1_000)
    assert small.held("replica:p/0") == 16_000, "no engine holds more than it has"


def test_A8_what_it_grows_by_is_within_what_the_memory_was_charged_for_its_bound() -> None:
    made = Bench(policy(tenant={"active_tokens_max": 15_000}, pool={"growth": True}), capacities=(capacity(kv_tokens=16_000),))
    made.arrive(1, 1, prompt_bytes=20_000, prompt_tokens=None, output_tokens_max=1_000, stream=True)
    execution = made.execution()
    made.first_byte(execution)
    made.feed(events.Progressed(execution, 250))
    assert made.held("tenant:acme") > 14_250
    assert made.held("replica:p/0") == 16_000


def test_K08_one_that_fits_by_no_likely_measure_is_told_so_for_good() -> None:
    made = Bench(policy(tenant={"active_tokens_max": 15_000}, pool={"growth": True}))
    made.arrive(1, 1, prompt_bytes=100_000, prompt_tokens=None, output_tokens_max=1_000)
    assert made.refusal().reason == "request_exceeds_capacity"


def test_K08_what_fits_by_its_bound_is_charged_its_bound() -> None:
    assert sized(Estimator(), text(14_000, output_tokens_max=500), SMALL).prefill_tokens == 14_032


def test_C1_a_bound_beyond_the_context_is_charged_the_context_and_no_more() -> None:
    work = sized(Estimator(), text(100_000, output_tokens_max=4_000))
    assert (work.prefill_tokens, work.tokens) == (32_767, 32_768)


def test_C1_a_bound_does_not_cut_the_answer_of_a_client_that_sets_no_limit() -> None:
    """What the engine is told is what the prompt leaves if it is as short as it may be; the engine knows what it is."""
    work = sized(Estimator(), text(30_000, output_tokens_max=None))
    assert work.output_tokens_max == 32_768 - 30_000 // 6
    assert work.tokens <= 32_768
    exact = sized(Estimator(), asked(None, prompt_tokens=30_000))
    assert exact.output_tokens_max == 2_768


def test_A8_an_exact_prompt_is_reserved_whole_whatever_its_client_allows() -> None:
    work = sized(Estimator(), asked(16_000, prompt_tokens=30_000))
    assert (work.prefill_tokens, work.output_tokens, work.tokens) == (30_000, 256, 30_256)
    whole = Estimator().work(asked(16_000, prompt_tokens=30_000), pool(growth=False), NOBODY)
    assert (whole.prefill_tokens, whole.tokens) == (30_000, 32_768), "no sequence holds more than the context"


@pytest.mark.parametrize(
    ("prompt_bytes", "tenant_tokens", "unsure"),
    [(4_000, 15_000, False), (20_000, 15_000, True), (100_000, 15_000, False), (20_000, None, False), (40_000, None, True)],
)
def test_C1_counting_is_worth_it_where_a_limit_lies_within_the_band(
    prompt_bytes: int, tenant_tokens: int | None, unsure: bool
) -> None:
    """Of 20,000 bytes between 3,333 and 20,032 tokens are possible; a context holds 32,768."""
    tenant = TenantPolicy("acme", active_tokens_max=tenant_tokens)
    assert Estimator().unsure(text(prompt_bytes), pool(), tenant) is unsure


def test_C1_what_was_learnt_narrows_the_band() -> None:
    estimator = taught(250)
    assert estimator.unsure(text(20_000), pool(), SMALL) is False, "4,761 to 5,282 tokens"
    assert estimator.unsure(text(58_000), pool(), SMALL) is True, "13,809 to 15,257 tokens"


def test_C1_the_gate_is_asked_by_the_requests_own_tenant() -> None:
    made = Bench(policy(tenant={"active_tokens_max": 15_000}), capacities=(capacity(),))
    assert made.gate.unsure(text(20_000, output_tokens_max=100)) is True
    assert made.gate.unsure(text(4_000, output_tokens_max=100)) is False
