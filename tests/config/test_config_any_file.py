"""Whatever a file holds, loading it ends in a configuration or in problems, never in an exception.

Files are written as JSON, which is YAML and quick to write."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import cycle
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import ENVIRONMENT, EXAMPLE
from test_config_schema import written

from headworks.config.build import policy
from headworks.config.build import settings as edges
from headworks.config.load import Loaded, load_bytes

ODD: tuple[Any, ...] = (None, 0, -1, 1.5, "x", "", [], {}, True, float("nan"), [[]], {"x": {"y": None}}, 10**30, "env:NOT_SET")


def check(raw: bytes) -> Loaded:
    loaded = load_bytes(raw, "h.yaml", ENVIRONMENT)
    assert (loaded.config is None) == bool(loaded.problems)
    assert all(problem.text and problem.line >= 1 for problem in [*loaded.problems, *loaded.warnings])
    if loaded.config is not None:
        policy(loaded.config, number=1)
        edges(loaded.config, ENVIRONMENT)
    return loaded


def test_every_place_of_the_reference_file_may_hold_something_odd() -> None:
    original = yaml.safe_load(EXAMPLE.read_text())
    odd = cycle(ODD)
    refused = 0
    for path in written(original):
        if not path:
            continue
        value = deepcopy(original)
        place = value
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = next(odd)
        refused += check(json.dumps(value).encode()).config is None
    assert refused > 150


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_is_explained(data: st.DataObject) -> None:
    raw = EXAMPLE.read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    length = data.draw(st.integers(0, 40))
    check(raw[:at] + data.draw(st.binary(max_size=12)) + raw[at + length :])


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_file_about_something_else_is_explained(value: Any) -> None:
    check(json.dumps({"pools": value, "tenants": value, "classes": value}).encode())
