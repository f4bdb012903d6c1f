"""The sentences: each names file, line and path, what was given, what is allowed, and what would help."""

from __future__ import annotations

import pytest
from reading import ENVIRONMENT, POOL, problems, read

from headworks.config import tree
from headworks.config.problems import ALLOWED

CASES = [
    ("server: {lisen: x}", "h.yaml:1: server.lisen: is not a known key; did you mean listen?"),
    ("sever: {}", "h.yaml:1: sever: is not a known key; did you mean server?"),
    (
        "classes: {bulk: {wait_s_max: 3}}",
        "h.yaml:1: classes.bulk.wait_s_max: is not a known key; it belongs to classes.*.queue.wait_s_max",
    ),
    (
        "spill: {}\nlog: {qqq: 1}",
        "h.yaml:2: log.qqq: is not a known key; known here: decisions, rotate_bytes, keep_days",
    ),
    (
        "server: {mode: enforced}",
        "h.yaml:1: server.mode: the text 'enforced' was given; 'enforce' or 'observe' is allowed."
        " observe: decide and record, refuse nothing.",
    ),
    (
        "server: {drain_s: -1}",
        "h.yaml:1: server.drain_s: -1 was given; at least 0 is allowed."
        " How long running answers may take at shutdown before they are cut.",
    ),
    (
        'server: {limits: {headers_max: "10"}}',
        "h.yaml:1: server.limits.headers_max: the text '10' was given; a whole number is allowed, without quotes and written"
        " out (YAML reads 1e6 and 5s as text). Most header lines; more: 431.",
    ),
    (
        "server: {limits: {headers_max: 1.5}}",
        "h.yaml:1: server.limits.headers_max: 1.5 was given; a whole number is allowed. Most header lines; more: 431.",
    ),
    (
        "server: {limits: {headers_max: true}}",
        "h.yaml:1: server.limits.headers_max: true was given; a whole number is allowed. Most header lines; more: 431.",
    ),
    (
        "server: {drain_s: .inf}",
        "h.yaml:1: server.drain_s: inf was given; a finite number is allowed."
        " How long running answers may take at shutdown before they are cut.",
    ),
    (
        "server: [1, 2]",
        "h.yaml:1: server: a list was given; a section, keys with values, is allowed. The gateway process itself.",
    ),
    (
        "server:\n  listen: 8080",
        "h.yaml:2: server.listen: 8080 was given; text is allowed; put it in quotes. Where clients connect.",
    ),
    (
        "server: {listen: 'host:99999'}",
        "h.yaml:1: server.listen: the text 'host:99999' was given; HOST:PORT such as 127.0.0.1:8080 or [::1]:8080 is allowed."
        " Where clients connect.",
    ),
    (
        "tenants: {'a b': {}}",
        "h.yaml:1: tenants.a b: is not a name that can be used here; letters, digits, _ . and - are allowed, at most 64,"
        " a letter or digit first",
    ),
    (
        "tenants: {a: {active_tokens_max: 0}}",
        "h.yaml:1: tenants.a.active_tokens_max: 0 was given; at least 1 is allowed. Tokens it may hold at once.",
    ),
    ("usage: {path: ''}", "h.yaml:1: usage.path: the text '' was given; at least 1 character is needed."),
    (
        "classes: {bulk: {slo: {ttft_percentile: 100}}}",
        "h.yaml:1: classes.bulk.slo.ttft_percentile: 100 was given; less than 100 is allowed."
        " Share of requests, in per cent, that must meet ttft_s.",
    ),
    ("ledger: {lease_s: 0}", "h.yaml:1: ledger.lease_s: 0 was given; more than 0 is allowed."),
    ("ledger: {url: 'mysql://x'}", "h.yaml:1: ledger.url: the text 'mysql://x' was given; memory: · sqlite:PATH ·"),
    ("classes: [a]", "h.yaml:1: classes: a list was given; a section, keys with values, is allowed."),
    ("server: {limits: {}, limits: {}}", "h.yaml:1: server.limits: the key stands twice, first in line 1; keep one of them"),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_each_problem_says_place_given_allowed_and_help(text: str, expected: str) -> None:
    found = problems(text + "\n" + POOL)
    assert len(found) == 1
    assert found[0].startswith(expected)


POOL_CASES = [
    ("kv_ratio_max: 1.7", "pools.p.kv_ratio_max: 1.7 was given; at most 1 is allowed."),
    ("over_commit: 0.5", "pools.p.over_commit: 0.5 was given; auto or a number of at least 1 is allowed."),
    ("active_tokens_max: autto", "pools.p.active_tokens_max: the text 'autto' was given; auto or a whole number of at least 1"),
    ("active_tokens_max: true", "pools.p.active_tokens_max: true was given; auto or a whole number of at least 1 is allowed."),
    ("limit: none", "pools.p.limit: the text 'none' was given; feedback or a whole number of at least 1 is allowed."),
    ("discipline: fido", "pools.p.discipline: the text 'fido' was given; 'fifo', 'fifo_tail_drop', 'lifo_drop_head',"),
    ("discipline: {queue_max: -1, kind: fifo_tail_drop}", "pools.p.discipline.queue_max: -1 was given; none or a whole number"),
    ("models: []", "pools.p.models: a list was given; at least 1 of them is needed."),
    ("models: [a b]", "pools.p.models[0]: the text 'a b' was given; letters, digits and a few signs are allowed, no spaces."),
    ("evidence_min: E7", "pools.p.evidence_min: the text 'E7' was given; 'E1', 'E2', 'E3', 'E3a', 'E3b' or 'E4' is allowed."),
]


@pytest.mark.parametrize(("text", "expected"), POOL_CASES, ids=[text for text, _ in POOL_CASES])
def test_pool_problems(text: str, expected: str) -> None:
    found = problems(f'pools: {{p: {{{text}, replicas: [{{url: "http://127.0.0.1:8000", engine: vllm}}]}}}}')
    assert len(found) == 1
    assert found[0].startswith("h.yaml:1: " + expected)


URL_CASES = [
    ("http://127.0.0.1:8000/v1", "without a path: the gateway adds /v1/… itself"),
    ("ftp://127.0.0.1", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ("127.0.0.1:8000", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ("http://127.0.0.1:8000?x=1", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ("http://127.0.0.1:99999", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ("http://[::1", "http://HOST:PORT or https://HOST:PORT is allowed"),
    ("http://0.0.0.0:8000", "not an unspecified, link-local or multicast one"),
    ("http://169.254.169.254", "not an unspecified, link-local or multicast one"),
    ("http://[fe80::1]:8000", "not an unspecified, link-local or multicast one"),
]


@pytest.mark.parametrize(("url", "expected"), URL_CASES)
def test_H3_an_engine_is_an_address_and_nothing_else(url: str, expected: str) -> None:
    found = problems(f'pools: {{p: {{replicas: [{{url: "{url}", engine: vllm}}]}}}}')
    assert expected in found[0]
    assert found[0].startswith("h.yaml:1: pools.p.replicas[0].url: ")


def test_missing_keys_are_named() -> None:
    assert problems("server: {}") == ["h.yaml:1: pools: is missing. Who answers."]
    assert problems("") == ["h.yaml:1: pools: is missing. Who answers."]
    found = problems("pools:\n  p: {replicas: [{engine: vllm}]}")
    assert found == ["h.yaml:2: pools.p.replicas[0].url: is missing. Where it listens: http://HOST:PORT."]


def test_all_problems_come_at_once_in_the_order_of_lines() -> None:
    text = """\
server:
  lisen: x
  drain_s: -1
classes:
  interactive:
    timeouts: {client_s: 50}
tenants:
  acme: {class: interactiv, keys: ["env:NOT_SET"]}
pools:
  llama:
    kv_ratio_max: 2
    replicas: [{url: "http://127.0.0.1:8000", engine: openai}]
  llama:
    replicas: []
"""
    found = problems(text)
    assert [line.split(": ")[0] for line in found] == [f"h.yaml:{n}" for n in (2, 3, 6, 8, 8, 10, 11, 13)]
    places = [line.split(": ")[1] for line in found]
    assert places == [
        "server.lisen",
        "server.drain_s",
        "classes.interactive.timeouts.gateway_s",
        "tenants.acme.class",
        "tenants.acme.keys[0]",
        "pools.llama.evidence_min",
        "pools.llama.kv_ratio_max",
        "pools.llama",
    ]


def test_what_rests_on_a_refused_value_is_not_judged() -> None:
    # gateway_s would be wrong beside the default client_s of 60; but client_s was given, only not as a number.
    found = problems('classes: {interactive: {timeouts: {client_s: "90", gateway_s: 80}}}\n' + POOL)
    assert len(found) == 1
    found = problems("classes: {interactive: {timeouts: {clients_s: 90, gateway_s: 80}}}\n" + POOL)
    assert found == ["h.yaml:1: classes.interactive.timeouts.clients_s: is not a known key; did you mean client_s?"]


SECRET = "sk-very-secret-value"
LEAKS = [
    f"server: {{admin_key: {SECRET}}}",
    f"server: {{admin_kye: {SECRET}}}",
    f"server: {SECRET}",
    f"tenants: {{a: {{keys: [{SECRET}]}}}}",
    f"tenants: {{a: {{keys: {SECRET}}}}}",
    f"tenants: {{a: {{keys: [['{SECRET}']]}}}}",
    f"tenants: {{a: {SECRET}}}",
    f"tenants: [{SECRET}]",
    f"ledger: {{url: 'valkey://u:{SECRET}@h:6379/0'}}",
    f"pools: {{p: {{replicas: [{{url: 'http://u:{SECRET}@h:1', engine: vllm}}]}}}}",
    f"pools: {{p: {{replicas: [{{url: 'http://h:1', engine: vllm, api_key: {SECRET}}}]}}}}",
    f"pools: {{p: {{replicas: [{{url: 'http://h:1', engine: vllm, api_key: {{x: {SECRET}}}}}]}}}}",
    f"spill: {{c: {{url: 'https://u:{SECRET}@h/v1', api_key: {SECRET}, model: a}}}}",
    f"server: {{admin_key: {SECRET}\n",
    f'server: {{admin_key: "{SECRET}\n',
]


@pytest.mark.parametrize("text", LEAKS)
def test_I37_no_secret_is_ever_shown(text: str) -> None:
    loaded = read(text + ("" if "pools" in text else "\n" + POOL))
    assert loaded.problems
    assert SECRET not in "\n".join(str(problem) for problem in [*loaded.problems, *loaded.warnings])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "the environment variable ACME_KEY is not set; set it, or take the key out"),
        ("", "the environment variable ACME_KEY is empty; a secret is needed"),
        ("sk-very secret", "what the environment variable ACME_KEY holds cannot be a secret; visible ASCII,"),
        ("sk-very-secret\n", "what the environment variable ACME_KEY holds cannot be a secret; visible ASCII,"),
    ],
)
def test_H2_a_reference_must_hold_a_secret_that_a_header_can_carry(value: str | None, expected: str) -> None:
    environment = {key: text for key, text in ENVIRONMENT.items() if key != "ACME_KEY"} | (
        {"ACME_KEY": value} if value is not None else {}
    )
    found = problems('tenants: {acme: {keys: ["env:ACME_KEY"]}}\n' + POOL, environment)
    assert len(found) == 1
    assert found[0].startswith("h.yaml:1: tenants.acme.keys[0]: " + expected)
    assert "sk-very" not in found[0]


def test_control_characters_do_not_reach_the_terminal() -> None:
    found = problems('server: {mode: "\\e[31mred"}\n' + POOL)
    assert "\x1b" not in found[0]


def test_a_suggestion_names_where_a_key_belongs() -> None:
    assert tree.suggestion(("pools", "p", "replica")) == "did you mean replicas?"
    assert tree.suggestion(("server", "heavy_tokens")) == "it belongs to pools.*.prefill.heavy_tokens"


def test_every_template_of_what_is_allowed_says_so() -> None:
    assert [kind for kind, text in ALLOWED.items() if "allowed" not in text and "needed" not in text] == []
