"""What must fit together: each relation, broken once, with the sentence that says what would help."""

from __future__ import annotations

from typing import get_args

import pytest
from reading import ENVIRONMENT, POOL, problems, read

from headworks.config.checks_pools import ENGINE_EVIDENCE
from headworks.config.pools import EngineKind
from headworks.engines.kinds import ENGINES

TWO_KEYS = "tenants: {a: {keys: ['env:ACME_KEY']}, b: {keys: ['env:BATCHCO_KEY']}}\n"
REPLICA = '{url: "http://127.0.0.1:8000", engine: vllm}'

JWT = "jwt: {issuer: 'https://i', audience: a, "
ONE = "tenants: {t: {keys: ['env:ACME_KEY']}}\n"

RELATIONS = [
    (ONE + JWT + "}", "jwt.keys_url: the issuer's keys are needed from one place: keys_url or keys_file"),
    (
        ONE + JWT + "keys_url: 'https://i/k', keys_file: k}",
        "jwt.keys_url: the issuer's keys are needed from one place: keys_url or keys_file",
    ),
    (
        ONE + JWT + "keys_url: 'http://login.example/k'}",
        "jwt.keys_url: over http:// anybody on the way can put in keys of their own, and be every tenant; https:// is needed",
    ),
    (ONE + JWT + "keys_file: k, keys_ca: c}", "jwt.keys_ca: keys_ca verifies nothing without an https:// keys_url"),
    (JWT + "keys_file: k}", "jwt: no tenants are configured that a token could name"),
    (ONE + JWT + "keys_file: k, tenants: {x: u}}", "jwt.tenants.x: there is no tenant u"),
    (
        "server: {listen: '127.0.0.1:9002', grpc: '127.0.0.1:9002'}",
        "server.grpc: 127.0.0.1:9002 is also server.listen; choose another port",
    ),
    (
        "server: {grpc: '127.0.0.1:9002'}\nspill: {cloud: {url: 'https://api.example', model: m,"
        " price_per_mtoken: {prompt: 1, output: 1}, money_per_day_max: 1}}\nclasses: {bulk: {on_pressure: [spill: cloud]}}",
        "server.grpc: what comes through Envoy goes to an engine of ours or nowhere: leave spill or server.grpc out",
    ),
    (
        "classes: {interactive: {timeouts: {gateway_s: 60}}}",
        "classes.interactive.timeouts.gateway_s: gateway_s is 60; it must be less than client_s, which is 60:"
        " the client has to hear the answer while it still listens",
    ),
    (
        "classes: {interactive: {queue: {wait_s_max: 45}}}",
        "classes.interactive.timeouts.gateway_s: gateway_s is 55; it must be more than queue.wait_s_max + first_byte_s"
        " = 45 + 10 = 55",
    ),
    (
        "classes: {interactive: {floor_ratio: 0.9}}",
        "classes.interactive.floor_ratio: the floors of all classes add up to 1.05; at most 1 can be kept",
    ),
    (
        "classes: {interactive: {preemptible: true}}",
        "classes.interactive.preemptible: a class that may be preempted cannot preempt; set one of the two to false",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], classes: [bulk], reserved: {tokens: 1}}}",
        "tenants.t.reserved: all of its classes are preemptible, and their work stands on what is lent: nothing would ever be"
        " kept for it",
    ),
    (
        "classes: {bulk: {on_pressure: [{clamp_output: 5, cached: true}]}}",
        "classes.bulk.on_pressure[0]: a step has 2 actions; exactly one is allowed of smaller_model, spill, clamp_output,"
        " strip_few_shot, drop_n, no_speculation, cached",
    ),
    (
        "classes: {bulk: {on_pressure: [{clamp_output: 5, enter_ratio: 0.5}]}}",
        "classes.bulk.on_pressure[0]: enter_ratio 0.5 must be above leave_ratio 0.65, or the step flutters",
    ),
    ("classes: {bulk: {on_pressure: [spill: cloud]}}", "classes.bulk.on_pressure[0].spill: cloud is not in spill: none"),
    (
        "classes: {bulk: {on_pressure: [smaller_model: c]}}",
        "classes.bulk.on_pressure[0].smaller_model: no pool serves c; served are a, b",
    ),
    (
        "classes: {bulk: {on_pressure: [no_speculation]}}",
        "classes.bulk.on_pressure[0].no_speculation: no pool has replicas with speculative decoding (speculative: true) and"
        " others without: there is nothing to choose",
    ),
    (
        "classes: {bulk: {on_pressure: [spill: llama]}}\n"
        "spill: {llama: {url: 'https://a.example/v1', model: m, price_per_mtoken: {prompt: 1, output: 1},"
        " money_per_day_max: 1}}",
        "spill.llama: llama is the name of a pool as well; call one of the two otherwise",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], classes: [silver]}}",
        "tenants.t.classes[0]: there is no class silver; there are interactive, batch, bulk",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], classes: [batch], class: bulk}}",
        "tenants.t.class: bulk is not among the tenant's classes: batch",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], class: silver}}",
        "tenants.t.class: silver is not among the tenant's classes: interactive, batch, bulk",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], slo: {silver: {ttft_s: 1}}}}",
        "tenants.t.slo.silver: there is no class silver; there are interactive, batch, bulk",
    ),
    ("tenants: {t: {keys: ['env:ACME_KEY'], models: [c]}}", "tenants.t.models[0]: no pool serves c; served are a, b"),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], active_tokens_max: 10, reserved: {tokens: 11}}}",
        "tenants.t.reserved.tokens: reserved.tokens is 11; the tenant may only hold active_tokens_max = 10",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], rate: {burst_tokens: 11}}}",
        "tenants.t.rate.burst_tokens: burst_tokens limits nothing without tokens_per_s",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], client_rate: {requests_per_s: 1, debt_tokens_max: 11}}}",
        "tenants.t.client_rate.debt_tokens_max: debt_tokens_max limits nothing without tokens_per_s",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY'], quota: {period: day}}}",
        "tenants.t.quota: a quota of neither tokens nor money limits nothing",
    ),
    (
        "tenants: {t: {keys: ['env:ACME_KEY']}, u: {keys: ['env:ACME_KEY']}}",
        "tenants.u.keys[0]: holds the same key as tenants.t.keys[0]; a key belongs to one client",
    ),
    (
        "server: {admin: '127.0.0.1:8080'}",
        "server.admin: 127.0.0.1:8080 is also where clients connect; choose another port",
    ),
    (
        "ledger: {keys_secret: env:ENGINE_KEY}",
        "ledger.keys_secret: the secret in ENGINE_KEY must have at least 32 characters",
    ),
    (
        "ledger: {url: 'valkey://h:6379/0', durability: power}",
        "ledger.durability: a shared ledger lasts as its server does; durability: power needs sqlite:PATH",
    ),
    (
        "server: {workers: 2}",
        "server.workers: server.workers is 2, and a ledger of sqlite belongs to one process: each of them would admit a whole "
        "budget; several need valkey://HOST:PORT",
    ),
    (
        "ledger: {url: 'memory:', when_lost: share}",
        "ledger.when_lost: a ledger of memory has one gateway; there is nothing to share",
    ),
    (
        "ledger: {url: 'memory:', durability: power}",
        "ledger.durability: memory: forgets everything with its process; durability: power needs sqlite:PATH",
    ),
]


@pytest.mark.parametrize(("text", "expected"), RELATIONS, ids=[text for text, _ in RELATIONS])
def test_relations_across_the_file(text: str, expected: str) -> None:
    assert problems(text + "\n" + POOL) == ["h.yaml:1: " + expected] or problems(text + "\n" + POOL) == [
        "h.yaml:2: " + expected
    ]


POOL_RELATIONS = [
    (f"p: {{models: [a], replicas: [{REPLICA}]}}, q: {{models: [a], replicas: [{{url: 'http://h:1', engine: vllm}}]}}",
     "pools.q.models[0]: a is already served by pool p; a model has one pool, put the replicas into it"),
    (f"p: {{models: [a], memory: {{b: {{kv_tokens_min: 5}}}}, replicas: [{REPLICA}]}}",
     "pools.p.memory.b: the pool does not serve b; it serves a"),
    (f"p: {{replicas: [{REPLICA}, {{url: 'http://localhost:8000', engine: vllm}}]}}",
     "pools.p.replicas[1].url: this engine stands already in pools.p.replicas.0; it would be counted twice"),
    ("p: {replicas: [{url: 'http://localhost:8080', engine: vllm}]}",
     "pools.p.replicas[0].url: this is the gateway's own address; name the engine's"),
    (f"p: {{replicas: [{REPLICA}, {{name: '0', url: 'http://h:1', engine: vllm}}]}}",
     "pools.p.replicas[1].name: replica 0 of this pool is called 0 already"),
    ("p: {replicas: [{url: 'http://h:1', engine: openai}]}",
     "pools.p.evidence_min: E3 is asked for; replica 0 (openai) gives E1; write evidence_min: E1"),
    ("p: {evidence_min: E3b, replicas: [{url: 'http://h:1', engine: vllm, exclusive: false}]}",
     "pools.p.evidence_min: E3b is asked for; replica 0 (vllm, not exclusive) gives E1, E3a, E4; write evidence_min: E3"),
    ("p: {evidence_min: E3a, replicas: [{url: 'https://h:1', engine: vllm}]}",
     "pools.p.evidence_min: E3a is asked for; replica 0 (vllm, over TLS) gives E1, E3b, E4; write evidence_min: E3"),
    ("p: {replicas: [{url: 'http://h:1', engine: vllm, tls: {ca: c}}]}",
     "pools.p.replicas[0].tls: tls needs a url that begins with https://"),
    (f"p: {{observe: {{every_s: 3}}, replicas: [{REPLICA}]}}",
     "pools.p.observe.every_s: every_s is 3; it must not be more than stale_s, which is 2"),
    (f"p: {{breaker: {{open_s: 90}}, replicas: [{REPLICA}]}}",
     "pools.p.breaker.open_s: open_s is 90; it must not be more than open_s_max, which is 60"),
    (f"p: {{pressure: {{release_ratio: 0.8}}, replicas: [{REPLICA}]}}",
     "pools.p.pressure.release_ratio: release_ratio is 0.8; it must not be more than engage_ratio, which is 0.75"),
    (f"p: {{discipline: {{kind: fifo, queue_max: 5}}, replicas: [{REPLICA}]}}",
     "pools.p.discipline.queue_max: queue_max is for fifo_tail_drop and lifo_drop_head; fifo keeps to the class's queue"),
    (f"p: {{mirror: {{pool: q}}, replicas: [{REPLICA}]}}", "pools.p.mirror.pool: there is no pool q; there are p"),
    (f"p: {{mirror: {{pool: p}}, replicas: [{REPLICA}]}}", "pools.p.mirror.pool: a pool cannot mirror to itself"),
]  # fmt: skip


@pytest.mark.parametrize(("pools", "expected"), POOL_RELATIONS, ids=[expected[:50] for _, expected in POOL_RELATIONS])
def test_relations_inside_pools(pools: str, expected: str) -> None:
    assert problems(f"pools: {{{pools}}}") == ["h.yaml:1: " + expected]


@pytest.mark.parametrize(
    ("engine", "level", "holds"),
    [
        ("vllm", "E1", True),
        ("vllm", "E2", True),
        ("vllm", "E3", True),
        ("vllm", "E3a", True),
        ("vllm", "E3b", True),
        ("vllm", "E4", True),
        ("sglang", "E3", True),
        ("sglang", "E3a", False),
        ("sglang", "E4", True),
        ("llamacpp", "E3a", True),
        ("llamacpp", "E3b", True),
        ("openai", "E1", True),
        ("openai", "E2", False),
        ("openai", "E3", False),
        ("openai", "E4", False),
    ],
)
def test_E6_a_pool_may_not_ask_for_more_than_its_engines_give(engine: str, level: str, holds: bool) -> None:
    text = f"pools: {{p: {{evidence_min: {level}, replicas: [{{url: 'http://h:1', engine: {engine}}}]}}}}"
    assert (read(text).config is not None) == holds


def test_E6_the_table_of_evidence_is_what_the_adapters_say() -> None:
    engines = {kind: adapter("r", "http://127.0.0.1:1", lambda: 0.0) for kind, adapter in ENGINES.items()}
    assert {kind: engine.evidence for kind, engine in engines.items()} == ENGINE_EVIDENCE
    assert set(ENGINES) == set(get_args(EngineKind)), "whatever may stand in a file can be driven"


EXPOSURE = [
    (
        "listen: '0.0.0.0:8080'",
        "",
        "0.0.0.0:8080 can be reached from other machines, without tenants with keys and without TLS",
    ),
    ("listen: '[::]:8080'", TWO_KEYS, "[::]:8080 can be reached from other machines, without TLS"),
    ("listen: 'example.com:8080'", TWO_KEYS, "example.com:8080 can be reached from other machines, without TLS"),
    (
        "admin: '10.0.0.1:8081'",
        TWO_KEYS,
        "10.0.0.1:8081 can be reached from other machines, without an admin_key and without TLS",
    ),
    (
        "listen: '0.0.0.0:8080', tls: {cert: c, key: k}",
        "",
        "0.0.0.0:8080 can be reached from other machines, without tenants with keys",
    ),
    (
        "admin: '10.0.0.1:8081', tls: {cert: c, key: k}",
        TWO_KEYS,
        "10.0.0.1:8081 can be reached from other machines, without an admin_key",
    ),
    ("grpc: '10.0.0.1:9002'", TWO_KEYS, "10.0.0.1:9002 can be reached from other machines, without TLS"),
]


@pytest.mark.parametrize(("server", "tenants", "expected"), EXPOSURE)
def test_H1_off_loopback_without_tls_or_keys_is_refused_unless_told(server: str, tenants: str, expected: str) -> None:
    text = f"server: {{{server}}}\n{tenants}{POOL}"
    found = problems(text)
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].endswith("listen on 127.0.0.1, or say --exposed if something in front protects it")
    assert problems(text, exposed_ok=True) == []


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.9.1:80", "[::1]:8080", "localhost:8080"])
def test_H1_loopback_needs_nothing(listen: str) -> None:
    assert problems(f"server: {{listen: '{listen}'}}\n{POOL}") == []


def test_a_ledger_url_may_come_from_the_environment() -> None:
    text = "ledger: {url: env:LEDGER_URL}\n" + POOL
    assert problems(text, {"LEDGER_URL": "memory:"}) == []
    assert problems(text, {}) == [
        "h.yaml:1: ledger.url: the environment variable LEDGER_URL is not set; set it, or take the key out"
    ]
    assert problems(text, {"LEDGER_URL": "valkey://:sk-secret@h:6379/0"}) == []
    assert problems(text, {"LEDGER_URL": "valkey+sentinel://:sk-secret@h"}) == [
        "h.yaml:1: ledger.url: valkey+sentinel://HOST:PORT,HOST:PORT/NAME is allowed, NAME as the sentinels call the primary"
    ]
    assert problems(text, {"LEDGER_URL": "postgres://sk-secret"}) == [
        "h.yaml:1: ledger.url: the variable holds none of memory: · sqlite:PATH · valkey://HOST:PORT/0"
    ]


def test_warnings_do_not_stop_a_file() -> None:
    loaded = read(
        "tenants:\n  a: {}\n  b: {keys: ['env:SHORT'], active_tokens_max: 99}\nmodels: {z: {}}\n" + POOL,
        {"SHORT": "0123456789"},
    )
    text = "\n".join(str(warning) for warning in loaded.warnings)
    assert loaded.config is not None
    assert "h.yaml:2: tenants.a.keys: no key stands here; unless one is stored (headworks keys add), nobody can ask" in text
    assert "h.yaml:3: tenants.b.keys[0]: the key in SHORT has fewer than 20 characters and can be guessed" in text
    assert "h.yaml:4: models.z: no pool serves z" in text


def test_H5_an_engine_that_proves_nothing_behind_envoy_is_warned_about() -> None:
    pools = "pools: {p: {replicas: [{url: 'http://h:1', engine: openai}]}}"
    warnings = [str(one) for one in read("server: {grpc: '127.0.0.1:9002'}\n" + pools).warnings]
    assert [one for one in warnings if "cannot prove that it stopped" in one and "server.grpc" in one]
    assert len(warnings) == len(read(pools).warnings) + 1


def test_D4_a_pool_that_takes_no_work_is_warned_about() -> None:
    for second, expected in (("true", ["every replica drains: the pool takes no work"]), ("false", [])):
        drained = f"{{url: 'http://h:1', engine: vllm, drain: true}}, {{url: 'http://h:2', engine: vllm, drain: {second}}}"
        loaded = read(f"pools: {{p: {{replicas: [{drained}]}}}}")
        assert [str(one).split("replicas: ")[1] for one in loaded.warnings if "drains" in str(one)] == expected


def test_pools_that_take_models_from_engines_leave_model_names_unjudged() -> None:
    text = f"pools: {{p: {{replicas: [{REPLICA}]}}}}\ntenants: {{t: {{keys: ['env:ACME_KEY'], models: [anything]}}}}"
    assert problems(text, ENVIRONMENT) == []


def test_A2_a_quota_that_a_restart_forgets_is_warned_about() -> None:
    quota = "tenants: {t: {keys: ['env:ACME_KEY'], quota: {tokens: 5}}}\n"
    warned = "without a usage journal a restart forgets what has been used of the quota"
    for usage, expected in (("usage: {path: null}\n", True), ("", False)):
        loaded = read(usage + quota + POOL)
        assert any(warned in str(warning) for warning in loaded.warnings) == expected


TWO = "tenants: {a: {keys: ['env:ACME_KEY'], reserved: {tokens: 60, requests: 3}, models: [m]}, b: {reserved: {tokens: 41}}}\n"


def test_B11_more_than_a_pool_has_cannot_be_reserved_in_it() -> None:
    """101 of 100 tokens; what a pool takes from its engines is judged when they have said it."""
    pool = f"pools: {{p: {{models: [m], active_tokens_max: %s, active_requests_max: %s, replicas: [{REPLICA}]}}}}"
    expected = "h.yaml:1: tenants.a.reserved.tokens: the reserves of all tenants come to 101 tokens; pool p has 100"
    assert problems(TWO + pool % (100, 3), ENVIRONMENT) == [expected]
    assert problems(TWO + pool % (101, "auto"), ENVIRONMENT) == []
    expected = "h.yaml:1: tenants.a.reserved.requests: the reserves of all tenants come to 3 requests; pool p has 2"
    assert problems(TWO + pool % ("auto", 2), ENVIRONMENT) == [expected]


def test_B11_a_tenant_that_may_not_ask_a_pool_reserves_nothing_there() -> None:
    other = REPLICA.replace(":8000", ":8001")
    pools = f"p: {{models: [other], active_tokens_max: 41, replicas: [{REPLICA}]}}, q: {{models: [m], replicas: [{other}]}}"
    assert problems(TWO + f"pools: {{{pools}}}", ENVIRONMENT) == []


def test_B13_a_demotion_without_a_quota_is_warned_about() -> None:
    for given, expected in (("", True), (", rate: {tokens_per_s: 5}", False), (", quota: {tokens: 5}", False)):
        loaded = read(f"tenants: {{t: {{keys: ['env:ACME_KEY'], over_quota: demote{given}}}}}\n" + POOL, ENVIRONMENT)
        assert any("nothing is ever over it" in str(warning) for warning in loaded.warnings) == expected


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("algorithms: [HS256]", "'RS256', "),
        ("algorithms: [none]", "'RS256', "),
        ("algorithms: []", "at least 1 of them is needed"),
        ("leeway_s: 301", "at most 300 is allowed"),
        ("tenant_claim: []", "at least 1 of them is needed"),
        ("tenant_claim: 5", "a list is allowed"),
        ("keys_url: 'https://169.254.169.254/k'", "the address of one machine is allowed"),
        ("keys_url: 'https://i/k?p=1'", "a URL that begins with http:// or https:// is allowed"),
        ("audience: ''", "at least 1 character is needed"),
    ],
)
def test_H2_tokens_cannot_be_taken_on_weaker_terms(text: str, allowed: str) -> None:
    found = problems(
        POOL
        + ONE
        + "jwt: {issuer: 'https://i', "
        + text
        + ("" if "audience" in text else ", audience: a")
        + ", keys_file: k}\n"
    )
    assert len(found) == 1 and allowed in found[0], found


@pytest.mark.parametrize(("mapped", "warned"), [("", []), ("tenants: {x: t}", ["u"]), ("tenants: {x: u}", ["t"])])
def test_H2_a_tenant_that_tokens_name_needs_no_key(mapped: str, warned: list[str]) -> None:
    loaded = read(POOL + "tenants: {t: {}, u: {}}\n" + JWT + "keys_file: k, " + mapped + "}\n")
    assert loaded.problems == ()
    assert [one.path for one in loaded.warnings] == [f"tenants.{name}.keys" for name in warned]
