"""From a file to the values the product runs on."""

from __future__ import annotations

import pytest
from reading import ENVIRONMENT, EXAMPLE, POOL, read

from headworks.config.address import Address
from headworks.config.build import policy, settings
from headworks.config.load import load
from headworks.config.options import for_upstream, with_options
from headworks.config.problem import ConfigError
from headworks.core.policy import (
    ClassPolicy,
    DisciplinePolicy,
    PreemptionPolicy,
    PricePolicy,
    QuotaPolicy,
    RatePolicy,
    ReplicaPolicy,
    TenantPolicy,
)

SMALLEST = """\
pools:
  llama:
    replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]
tenants:
  acme: {keys: ["env:ACME_KEY"], share: 5, active_tokens_max: 15000}
  batchco: {keys: ["env:BATCHCO_KEY"], class: bulk}
"""


def test_the_smallest_useful_file_becomes_a_policy() -> None:
    rules = policy(read(SMALLEST).config_or_raise(), number=7)
    assert rules.number == 7
    assert rules.tenants == {
        "acme": TenantPolicy(
            "acme",
            share=5.0,
            classes=("interactive", "batch", "bulk"),
            service_class="interactive",
            active_tokens_max=15_000,
        ),
        "batchco": TenantPolicy("batchco", share=1.0, classes=("interactive", "batch", "bulk"), service_class="bulk"),
    }
    pool = rules.pools["llama"]
    assert pool.models == ()
    assert pool.replicas == (ReplicaPolicy("llama/0", exclusive=True),)
    assert (pool.active_tokens_max, pool.active_requests_max, pool.kv_ratio_max, pool.over_commit) == (None, None, 0.85, None)
    assert (pool.heavy_tokens, pool.heavy_prefills_max, pool.prefill_tokens_max) == (4096, None, None)
    assert pool.discipline == DisciplinePolicy("wfq")
    assert not rules.observe


def test_D4_replicas_are_called_by_their_names_or_places_and_may_drain() -> None:
    text = (
        "pools: {p: {replicas: [{url: 'http://h:1', engine: vllm}, {name: b, url: 'http://h:2', engine: vllm, drain: true}]}}"
    )
    config = read(text).config_or_raise()
    assert policy(config, number=1).pools["p"].replicas == (ReplicaPolicy("p/0"), ReplicaPolicy("p/b", drains=True))
    assert [one.name for one in settings(config, ENVIRONMENT).replicas] == ["p/0", "p/b"]


def test_a_file_of_one_pool_is_enough() -> None:
    rules = policy(read('pools: {p: {replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}').config_or_raise(), number=1)
    assert rules.tenants == {"anonymous": TenantPolicy("anonymous")}
    assert list(rules.classes) == ["interactive"]


def test_classes_have_their_own_defaults_and_a_section_changes_only_what_it_states() -> None:
    text = "classes:\n  interactive: {slo: {ttft_s: 2.5}, share: 4}\n  bulk:\n  gold: {queue: {wait_s_max: 1}}\n"
    classes = policy(read(text + SMALLEST).config_or_raise(), number=1).classes
    assert classes["interactive"] == ClassPolicy(
        "interactive", share=4.0, floor_ratio=0.2, ttft_slo_s=2.5, tpot_slo_s=0.035, e2e_slo_s=5.0, preempts=True
    )
    assert classes["batch"] == ClassPolicy(
        "batch", share=3.0, floor_ratio=0.1, ttft_slo_s=None, e2e_slo_s=120.0, e2e_kept_ratio=0.95, wait_s_max=30.0,
        client_s=300.0, gateway_s=290.0, first_byte_s=60.0, idle_s=30.0,
    )  # fmt: skip
    assert classes["bulk"] == ClassPolicy(
        "bulk", share=1.0, floor_ratio=0.05, ttft_slo_s=None, wait_s_max=300.0, queue_requests_max=5000,
        client_s=1800.0, gateway_s=1790.0, first_byte_s=600.0, idle_s=60.0, preemptible=True,
    )  # fmt: skip
    assert classes["gold"] == ClassPolicy("gold", share=1.0, floor_ratio=0.0, ttft_slo_s=None, wait_s_max=1.0)


def test_a_promise_can_be_taken_back() -> None:
    text = "classes: {interactive: {slo: {ttft_s: null}}}\n" + SMALLEST
    assert policy(read(text).config_or_raise(), number=1).classes["interactive"].ttft_slo_s is None


def test_every_key_that_is_in_force_reaches_the_policy() -> None:
    text = """\
server: {mode: observe}
ledger: {url: "memory:", lease_s: 3, remember_s: 60}
classes:
  batch:
    mode: observe
    queue: {wait_s_max: 2, requests_max: 7, bytes_max: 1000}
    timeouts: {client_s: 40, gateway_s: 30, first_byte_s: 5, idle_s: 4}
    on_tenant_full: refuse
tenants:
  t: {mode: observe, keys: ["env:ACME_KEY"], classes: [batch], models: [a], active_tokens_max: 5, active_requests_max: 6,
      queue: {requests_max: 3, bytes_max: 4000}, reserved: {tokens: 4, requests: 2}, over_quota: demote,
      rate: {tokens_per_s: 10, burst_tokens: 20, debt_tokens_max: 30, requests_per_s: 4, burst_requests: 5},
      client_rate: {tokens_per_s: 1.5, retry_ratio: 0.2}, quota: {period: week, tokens: 7, money: 2.5, bill: reserved}}
models: {a: {price_per_mtoken: {prompt: 0.1, output: 0.4}}}
pools:
  p:
    models: [a]
    active_tokens_max: 100
    active_requests_max: 10
    kv_ratio_max: 0.7
    over_commit: 1.5
    preemption: {remaining_ratio: 0.4, running_ratio_per_min_max: 0.1}
    prefill: {heavy_tokens: 300, heavy_max: 2, tokens_in_flight_max: 900}
    evidence_min: E3a
    discipline: {kind: lifo_drop_head, queue_max: 9, propagate_cancel: false, drop_late: false}
    estimate: {output_tokens_cold: 64}
    observe: {every_s: 0.4, unconfirmed_every_s: 0.2, stale_s: 1, forget_s: 3, stalled_s: 7}
    replicas: [{url: "http://127.0.0.1:8000", engine: vllm, exclusive: false}]
"""
    rules = policy(read(text).config_or_raise(), number=1)
    assert (rules.observe, rules.lease_s, rules.remember_s) == (True, 3.0, 60.0)
    batch = rules.classes["batch"]
    assert (batch.wait_s_max, batch.queue_requests_max, batch.queue_bytes_max, batch.observe) == (2.0, 7, 1000, True)
    assert (batch.client_s, batch.gateway_s, batch.first_byte_s, batch.idle_s) == (40.0, 30.0, 5.0, 4.0)
    assert batch.on_tenant_full == "refuse"
    tenant = rules.tenants["t"]
    assert (tenant.classes, tenant.service_class, tenant.models, tenant.observe) == (("batch",), "batch", ("a",), True)
    assert (tenant.active_tokens_max, tenant.active_requests_max, tenant.demotes) == (5, 6, True)
    assert (tenant.queue_requests_max, tenant.queue_bytes_max) == (3, 4_000)
    assert (tenant.reserved_tokens, tenant.reserved_requests) == (4, 2)
    assert tenant.rate == RatePolicy(10.0, 20, 30, 4.0, 5)
    assert (tenant.client_rate, tenant.retry_ratio) == (RatePolicy(tokens_per_s=1.5), 0.2)
    assert tenant.quota == QuotaPolicy("week", 7, 2_500_000_000, "reserved")
    assert rules.prices == {"a": PricePolicy(0.1, 0.1, 0.4)} and len(rules.price_version) == 12
    pool = rules.pools["p"]
    assert (pool.models, pool.active_tokens_max, pool.active_requests_max) == (("a",), 100, 10)
    assert pool.preemption == PreemptionPolicy(0.4, 0.1)
    assert (pool.heavy_tokens, pool.heavy_prefills_max, pool.prefill_tokens_max) == (300, 2, 900)
    assert (pool.kv_ratio_max, pool.over_commit, pool.evidence_min, pool.output_tokens_cold) == (0.7, 1.5, "E3a", 64)
    assert pool.discipline == DisciplinePolicy("lifo_drop_head", queue_max=9, propagate_cancel=False, drop_late=False)
    assert (pool.observe_every_s, pool.unconfirmed_every_s, pool.stale_s, pool.forget_s, pool.stalled_s) == (
        0.4,
        0.2,
        1.0,
        3.0,
        7.0,
    )
    assert pool.replicas == (ReplicaPolicy("p/0", exclusive=False),)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("fifo", DisciplinePolicy("fifo")),
        ("wfq", DisciplinePolicy("wfq")),
        ("{kind: class_priority}", DisciplinePolicy("class_priority")),
        ("{kind: fifo, queue_max: none}", DisciplinePolicy("fifo", unbounded=True)),
        ("{kind: fifo_tail_drop, queue_max: 32}", DisciplinePolicy("fifo_tail_drop", queue_max=32)),
    ],
)
def test_D3_disciplines_by_name_or_section(given: str, expected: DisciplinePolicy) -> None:
    text = f'pools: {{p: {{discipline: {given}, replicas: [{{url: "http://127.0.0.1:8000", engine: vllm}}]}}}}'
    assert policy(read(text).config_or_raise(), number=1).pools["p"].discipline == expected


def test_the_reference_file_becomes_settings() -> None:
    edges = settings(read(EXAMPLE.read_text()).config_or_raise(), ENVIRONMENT)
    assert (edges.listen, edges.admin) == (Address("127.0.0.1", 8080), Address("127.0.0.1", 8081))
    assert edges.admin_key is not None
    assert edges.admin_key.reveal() == "admin-0123456789abcdef0123"
    assert edges.limits.body_bytes_max == 8_388_608
    assert edges.limits.connections_max == 10_000
    assert (edges.drain_s, edges.ledger_url, edges.durability) == (60.0, "sqlite:headworks.db", "process")
    assert [(r.name, r.pool, r.url, r.engine) for r in edges.replicas] == [
        ("llama/0", "llama", "http://127.0.0.1:8000", "vllm"),
        ("small/a", "small", "http://127.0.0.1:8001", "vllm"),
        ("small/1", "small", "https://engine.example.com:8443", "vllm"),
        ("cloud/0", "cloud", "https://api.example.com", "openai"),
    ]
    assert edges.replicas[0].api_key is not None
    assert edges.replicas[0].api_key.reveal() == "engine-0123456789abcdef01"
    assert [(key.tenant, key.client, key.key.reveal()) for key in edges.keys] == [
        ("acme", "acme/ACME_KEY", ENVIRONMENT["ACME_KEY"])
    ]
    assert not edges.is_anonymous
    assert edges.keys_secret is not None
    assert edges.keys_secret.reveal() == "pepper-0123456789abcdef0123456789"
    assert (edges.decision_log.directory, edges.decision_log.keep_days) == ("decisions/", 30)
    assert (edges.usage.directory, edges.usage.keep_days) == ("usage/", 400)


def test_I37_settings_do_not_print_secrets() -> None:
    printed = repr(settings(read(EXAMPLE.read_text()).config_or_raise(), ENVIRONMENT))
    assert "Secret('ACME_KEY')" in printed
    assert [name for name, value in ENVIRONMENT.items() if value in printed] == []


def test_a_version_names_what_stands_in_a_file_not_how_it_is_written() -> None:
    def version(text: str) -> str:
        return policy(read(text).config_or_raise(), number=1).version

    assert version(POOL) == version("# a comment\n" + POOL)
    assert version(POOL) == version("ledger: {lease_s: 5}\n" + POOL)
    assert version(POOL) != version("ledger: {lease_s: 6}\n" + POOL)
    assert len(version(POOL)) == 12


def test_an_upstream_needs_no_file() -> None:
    config = for_upstream("http://127.0.0.1:8000/")
    rules, edges = policy(config, number=1), settings(config, {})
    assert list(rules.tenants) == ["anonymous"]
    assert list(rules.classes) == ["interactive"]
    assert rules.pools["upstream"].evidence_min == "E3"
    assert [(r.name, r.url, r.engine) for r in edges.replicas] == [("upstream/0", "http://127.0.0.1:8000", "vllm")]
    assert edges.is_anonymous
    assert edges.usage.directory is None, "without a file nothing is written"
    assert edges.listen.is_loopback
    assert for_upstream("http://127.0.0.1:8000", "openai").pools["upstream"].evidence_min == "E1"


@pytest.mark.parametrize(
    ("engines", "stated", "over_commit"),
    [
        (["vllm"], "auto", None),
        (["vllm", "llamacpp"], "auto", 1.0),
        (["sglang"], "auto", 1.0),
        (["llamacpp"], "4.0", 4.0),
    ],
)
def test_D4_over_commit_is_learnt_only_where_preemptions_are_told(
    engines: list[str], stated: str, over_commit: float | None
) -> None:
    replicas = ", ".join(f"{{url: 'http://h:{port}', engine: {engine}}}" for port, engine in enumerate(engines, 1))
    config = read(f"pools: {{p: {{over_commit: {stated}, replicas: [{replicas}]}}}}").config_or_raise()
    assert policy(config, number=1).pools["p"].over_commit == over_commit


@pytest.mark.parametrize(
    ("url", "engine", "expected"),
    [
        (
            "127.0.0.1:8000",
            "vllm",
            "--upstream: the text '127.0.0.1:8000' was given; http://HOST:PORT or https://HOST:PORT is allowed",
        ),
        (
            "http://127.0.0.1:8000",
            "tgi",
            "--engine: the text 'tgi' was given; 'vllm', 'sglang', 'llamacpp' or 'openai' is allowed.",
        ),
        ("http://u:sk-secret@h:1", "vllm", "--upstream: text with a user or password was given"),
        ("http://127.0.0.1:8080", "vllm", "--upstream: this is the gateway's own address; name the engine's"),
    ],
)
def test_a_bad_upstream_is_explained_by_its_option(url: str, engine: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        for_upstream(url, engine)
    assert str(caught.value).startswith(expected)
    assert "sk-secret" not in str(caught.value)


def test_options_change_a_file() -> None:
    config = with_options(read(POOL).config_or_raise(), {}, listen="[::1]:9000", observe=True)
    assert settings(config, {}).listen == Address("::1", 9000)
    assert policy(config, number=1).observe
    with pytest.raises(ConfigError, match="--listen: the text 'x' was given; HOST:PORT"):
        with_options(config, {}, listen="x")


def test_H1_an_option_does_not_get_around_loopback() -> None:
    config = for_upstream("http://127.0.0.1:8000")
    with pytest.raises(ConfigError, match=r"command line: 0\.0\.0\.0:80 can be reached from other machines, without tenants"):
        with_options(config, {}, listen="0.0.0.0:80")
    assert with_options(config, {}, listen="0.0.0.0:80", exposed_ok=True).server.listen == "0.0.0.0:80"
    with pytest.raises(ConfigError, match="command line: this is the gateway's own address"):
        with_options(config, {}, listen="127.0.0.1:8000")


def test_a_file_that_is_not_there_is_a_problem() -> None:
    loaded = load("/no/such/headworks.yaml", {})
    assert not loaded.is_readable
    assert [str(problem) for problem in loaded.problems] == [
        "/no/such/headworks.yaml: cannot be read: No such file or directory"
    ]
    with pytest.raises(ConfigError):
        loaded.config_or_raise()
