"""The schema, the reference file and the list of what is not in force yet, held to each other."""

from __future__ import annotations

import types
import typing
from typing import Any

import pytest
import yaml
from reading import ENVIRONMENT, EXAMPLE, read

from headworks.config import tree
from headworks.config.schema import NOT_YET_IN_FORCE, Config, json_schema
from headworks.config.values import Section

NOT_DEFAULTS = (
    "server.admin_key", "server.tls", "models.", "spill.", "tenants.", "classes.*.refuse_when", "classes.*.on_pressure",
    "ledger.keys_secret", "jwt.",
    "pools.*.models", "pools.*.memory", "pools.*.mirror", "pools.*.gpu", "pools.*.replicas", "pools.small.",
)  # fmt: skip


def written(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Every place of a parsed file and what stands there."""
    if isinstance(value, dict):
        below = [(key, item) for key, item in value.items()]
    elif isinstance(value, list):
        below = list(enumerate(value))
    else:
        return {path: value}
    places = {path: value}
    for key, item in below:
        places |= written(item, (*path, key))
    return places


def test_the_reference_file_loads_without_a_problem() -> None:
    loaded = read(EXAMPLE.read_text(), ENVIRONMENT)
    assert [str(problem) for problem in loaded.problems] == []
    assert loaded.config is not None


def test_every_key_of_the_schema_stands_in_the_reference_file_and_back() -> None:
    in_file = {".".join(tree.pattern(path)) for path in written(yaml.safe_load(EXAMPLE.read_text())) if path}
    in_schema = {".".join(pattern) for pattern in tree.patterns()}
    assert in_schema - in_file == set()
    assert {key for key in in_file - in_schema if not key.endswith("*")} == set()


def test_values_of_the_reference_file_are_the_defaults_but_for_the_stated_ones() -> None:
    minimal = 'pools: {llama: {replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}'
    defaults = read(minimal).config_or_raise().model_dump(by_alias=True)
    compared = 0
    for path, value in written(yaml.safe_load(EXAMPLE.read_text())).items():
        spelled = ".".join(str(step) for step in path)
        pattern = ".".join(tree.pattern(path))
        if isinstance(value, (dict, list)) or any(p.startswith(NOT_DEFAULTS) for p in (spelled, pattern)):
            continue
        default = defaults
        for step in path:
            default = default[step]
        assert default == value, spelled
        compared += 1
    assert compared > 100


def test_every_key_has_a_sentence() -> None:
    found = {pattern: tree.find(pattern) for pattern in tree.patterns()}
    assert [pattern for pattern, key in found.items() if key is None or not key.sentence.endswith(".")] == []


def sections(annotation: Any) -> set[type[Section]]:
    """Every section class that can stand under an annotation."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if not issubclass(annotation, Section):
            return set()
        below = [sections(field.annotation) for field in annotation.model_fields.values()]
        return {annotation}.union(*below)
    return set().union(*(sections(argument) for argument in typing.get_args(annotation)))


UNITS = (
    "_s",
    "_ratio",
    "_per_s",
    "_per_h",
    "_per_min_max",
    "_max",
    "_min",
    "_percentile",
    "ratio",
    "quantile",
    "coverage",
    "share",
)
MONEY = {"money", "money_per_day_max", "prompt", "cached", "output", "gpu_price_per_h"}
PLAIN = {"over_commit"}


def test_every_number_that_is_no_count_says_its_unit() -> None:
    without: list[str] = []
    for section in sections(Config):
        for name, field in section.model_fields.items():
            is_float = field.annotation is float or float in typing.get_args(field.annotation)
            if is_float and not name.endswith(UNITS) and name not in MONEY | PLAIN:
                without.append(f"{section.__name__}.{name}")
    assert without == []


def test_the_json_schema_is_closed_everywhere_and_explains_every_key() -> None:
    schema = json_schema()
    objects = [schema, *schema["$defs"].values()]
    objects += [way for found in schema["$defs"].values() for way in found.get("anyOf", ())]
    closed = [found for found in objects if "properties" in found]
    assert len(closed) == len(sections(Config))
    assert all(found["additionalProperties"] is False for found in closed)
    for found in closed:
        for key, value in found["properties"].items():
            # Where a section's own sentence is the key's, it stands only once, at the section.
            section = schema["$defs"].get(value.get("$ref", "").rpartition("/")[2], {})
            assert value.get("description") or section.get("description"), key
    assert schema["properties"]["pools"]["minProperties"] == 1
    assert {"enum", "properties"} <= {key for way in schema["$defs"]["Discipline"]["anyOf"] for key in way}


def test_the_list_of_what_is_not_in_force_names_keys_that_exist() -> None:
    known = {".".join(pattern) for pattern in tree.patterns()}
    assert [entry.key for entry in NOT_YET_IN_FORCE if entry.key not in known] == []
    keys = [entry.key for entry in NOT_YET_IN_FORCE]
    assert len(keys) == len(set(keys))


def test_what_does_nothing_yet_is_said_of_the_reference_file() -> None:
    said = {".".join(tree.pattern(_steps(warning.path))) for warning in read(EXAMPLE.read_text()).warnings}
    always = {entry.key for entry in NOT_YET_IN_FORCE if not entry.but and not entry.only}
    assert always - said == set()
    assert said <= {entry.key for entry in NOT_YET_IN_FORCE}


def _steps(spelled: str) -> tuple[Any, ...]:
    """`a.b[0].c` as a path; names of models have dots, so unknown steps are matched from the left."""
    spelled = spelled.replace("llama-3.1-8b-instruct", "MODEL")
    steps: list[Any] = []
    for part in spelled.split("."):
        name, _, rest = part.partition("[")
        steps.append(name)
        steps += [int(number.rstrip("]")) for number in rest.split("[") if number]
    return tuple(steps)


def test_the_smallest_file_says_nothing_that_does_nothing() -> None:
    loaded = read('pools: {p: {replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}')
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("ledger: {url: 'memory:'}", False),
        ("ledger: {url: 'sqlite:x.db'}", False),
        ("ledger: {durability: power}", False),
        ("classes: {bulk: {mode: enforce}}", False),
        ("classes: {bulk: {mode: observe}}", False),
        ("classes: {bulk: {slo: {goodput_ratio: 0.9}}}", True),
    ],
)
def test_a_value_that_says_what_is_done_anyway_is_not_warned_about(text: str, warned: bool) -> None:
    loaded = read(text + '\npools: {p: {replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}')
    assert any("accepted, not in force" in str(warning) for warning in loaded.warnings) == warned


def test_D3_every_discipline_is_in_force() -> None:
    for given in ("wfq", "{kind: class_priority}", "fifo", "{kind: lifo_drop_head}", "fifo_tail_drop", "predictive_ttft"):
        loaded = read(f'pools: {{p: {{discipline: {given}, replicas: [{{url: "http://127.0.0.1:8000", engine: vllm}}]}}}}')
        assert not any("discipline" in str(warning) for warning in loaded.warnings)


def test_A6_kept_answers_are_no_larger_than_what_may_wait_for_a_slow_client() -> None:
    base = 'pools: {p: {replicas: [{url: "http://127.0.0.1:8000", engine: vllm}]}}\nledger: {replay_bytes_max: %d}\n'
    assert read(base % 1_000_000).problems == ()
    (problem,) = read(base % 1_000_001).problems
    assert "ledger.replay_bytes_max" in str(problem) and "1000000" in str(problem).replace(",", "")
