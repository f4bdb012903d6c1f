"""The few series we read are what prometheus-client's parser reads on the same page."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headworks.engines.metrics_text import labels, series, summed_by, value


def page_of(ranks: int = 2, padding_series: int = 0) -> bytes:
    """A page with an engine's shapes: labelled gauges, counters, histograms, capacity in labels, text that needs escapes."""
    registry = CollectorRegistry()
    running = Gauge(
        "vllm:num_requests_running", "Running.\nvllm:num_requests_running 99", ["engine", "model_name"], registry=registry
    )
    waiting = Gauge("vllm:num_requests_waiting", "Waiting.", ["engine", "model_name"], registry=registry)
    by_reason = Gauge("vllm:num_requests_waiting_by_reason", "Why.", ["engine", "reason"], registry=registry)
    iterations = Histogram("vllm:iteration_tokens_total", "Tokens.", ["engine"], buckets=(1, 8, 64), registry=registry)
    preemptions = Counter("vllm:num_preemptions", "Preempted.", ["engine"], registry=registry)
    for rank in range(ranks):
        running.labels(str(rank), 'a"b\\c\nd{e}').set(3 + rank)
        waiting.labels(str(rank), "tiny").set(0)
        by_reason.labels(str(rank), "capacity").set(77)
        preemptions.labels(str(rank)).inc(rank)
        for tokens in range(10 * (rank + 1)):
            iterations.labels(str(rank)).observe(tokens)
    Gauge("process_start_time_seconds", "Start.", registry=registry).set(1795996270.03)
    Gauge("strange", "Values.", ["kind"], registry=registry).labels("nan").set(float("nan"))
    for number in range(padding_series):
        Histogram(f"vllm:padding_{number}_seconds", "Padding.", ["engine", "model_name"], registry=registry).labels("0", "tiny")
    return generate_latest(registry)


NAMES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:iteration_tokens_total_count",
    "vllm:iteration_tokens_total_bucket",
    "vllm:num_preemptions_total",
    "process_start_time_seconds",
    "vllm:absent",
)


@pytest.mark.parametrize("name", NAMES)
def test_B3_series_are_what_the_reference_parser_reads(name: str) -> None:
    page = page_of()
    expected = [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name
    ]
    assert list(series(page, name.encode())) == expected


def test_B3_missing_is_not_zero() -> None:
    page = page_of()
    assert value(page, b"vllm:absent") is None
    assert summed_by(page, b"vllm:absent", "engine") == {}
    assert value(page, b"vllm:num_requests_waiting") == 0.0
    assert value(b"", b"vllm:num_requests_waiting") is None


def test_B3_series_are_added_up_by_rank() -> None:
    assert summed_by(page_of(ranks=3), b"vllm:iteration_tokens_total_count", "engine") == {"0": 10.0, "1": 20.0, "2": 30.0}


def test_B3_first_and_last_lines_are_read_as_well() -> None:
    assert list(series(b'a 1\na_b 2\na{x="1"} 3 1700000000\na 4', b"a")) == [({}, 1.0), ({"x": "1"}, 3.0), ({}, 4.0)]


@pytest.mark.parametrize("line", [b"a", b'a{x="1" 1', b"a one", b"a{} ", b"#a 1", b"ba 1"])
def test_B3_a_line_that_makes_no_sense_is_as_if_it_were_not_there(line: bytes) -> None:
    assert list(series(line + b"\n", b"a")) == []


def test_B3_labels_are_unescaped() -> None:
    assert labels(rb'a="1",b="x\"y\\z\nw",c=""') == {"a": "1", "b": 'x"y\\z\nw', "c": ""}


def test_B3_a_large_page_costs_less_than_a_millisecond() -> None:
    page = page_of(padding_series=40)
    assert len(page) > 50_000
    wanted = [name.encode() for name in NAMES]
    best_s = 1.0
    for _ in range(20):
        begun_s = time.perf_counter()
        for name in wanted:
            list(series(page, name))
        best_s = min(best_s, time.perf_counter() - begun_s)
    assert best_s < 0.001
