"""The HTML report: one file that needs nothing, that can be read without seeing it, and whose numbers are those of `--json`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headworks.sim.compare import run
from headworks.sim.drawing import Chart, Line, figure, shares
from headworks.sim.page import document, number, paragraph, section, table
from headworks.sim.report_page import simulated_page
from headworks.sim.scenario import Scenario, load
from headworks.sim.series import ENDS, OTHERS, Told, end_of, series

ROOT = Path(__file__).resolve().parent.parent.parent
VOID = {"meta"}


class Reader(HTMLParser):
    """Every element that is open is closed; what it is called and what it says is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Ten seconds of the burst: an engine of ten requests a second is sent thirty."""
    burst = load(ROOT / "scenarios" / "burst.yaml")
    return burst.model_copy(update={"duration_s": 10.0, "cases": {}, "expect": {}})


@pytest.fixture(scope="module")
def found(scenario: Scenario) -> dict[str, Any]:
    return run(scenario, 1, curves=True)


def test_G1_the_page_of_a_simulation_needs_nothing_else(found: dict[str, Any], scenario: Scenario) -> None:
    page = simulated_page(found, scenario)
    reader = read(page)
    assert page.startswith("<!doctype html>")
    assert not {tag for tag, _ in reader.seen} & {"script", "link", "img", "iframe", "object", "use"}
    assert [name for _, attributes in reader.seen for name in attributes if name in ("src", "href", "onload", "onclick")] == []
    assert not re.search(r"https?:|url\(|@import|@font-face", page)
    assert page == simulated_page(found, scenario), "the same bytes again"


def test_G1_every_drawing_says_what_it_shows(found: dict[str, Any], scenario: Scenario) -> None:
    page = simulated_page(found, scenario)
    drawings = re.findall(r'<svg viewBox="[^"]*" role="img">(.*?)</svg>', page)
    assert len(drawings) == 3 + 3 + 1  # arrivals of each discipline, queue and engines, one class
    for drawing in drawings:
        assert re.match(r"<title>[^<]+</title><desc>[^<]+ on average, at most [^<]+</desc>", drawing)
    tables = page.count("<table>")
    assert tables == len(drawings) + 1, "its numbers stand behind each, and the results before them"
    assert page.count("<details>") == len(drawings)


def test_G1_what_a_page_shows_stands_in_the_results(found: dict[str, Any], scenario: Scenario) -> None:
    texts = "|".join(read(simulated_page(found, scenario)).texts)
    for discipline in found["disciplines"].values():
        for key in ("goodput_per_s", "useful_per_s"):
            assert number(discipline[key], "/s") in texts
    curves = found["disciplines"]["fifo"]["series"]
    assert curves["bin_s"] == 0.5
    assert sum(sum(curves["per_s"][end]) for end in ENDS) * 0.5 == 300
    assert curves["waiting"][10] == 100, "after 5 s of thirty against ten, a hundred wait"
    assert max(curves["running"]) == 1
    assert sum(found["disciplines"]["predictive_ttft"]["series"]["per_s"]["refused"]) * 0.5 >= 185


def test_G1_results_without_curves_are_as_they_were(found: dict[str, Any], scenario: Scenario) -> None:
    bare = run(scenario, 1)
    for name, one in bare["disciplines"].items():
        assert {key: value for key, value in found["disciplines"][name].items() if key != "series"} == one


def test_G1_names_from_outside_cannot_write_the_page() -> None:
    evil = "<script>alert('&')</script>"
    page = document(
        evil,
        evil,
        section(evil, paragraph(evil), shares(evil, [(evil, [(evil, 1.0)])])),
        figure(Chart(evil, "s", 1.0, [Line(evil, [1.0, 2.0]), Line("b", [1.0, None])], limit=(evil, 1.5))),
        table([evil], []),
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") > 10
    read(page)


def test_G1_a_curve_is_broken_where_there_is_nothing() -> None:
    drawn = figure(Chart("t", "s", 1.0, [Line("a", [1.0, 2.0, None, 4.0, None, 1.0, 1.0])]))
    (path,) = re.findall(r'<path class="curve c0" d="([^"]*)"', drawn)
    assert path.count("M") == 3
    assert path.count("h.01") == 1, "a value with nothing beside it is a dot"
    assert "a: 1.80 s on average, at most 4.00 s at 3 s" in drawn


def test_G1_parts_that_are_stacked_end_at_their_sum() -> None:
    drawn = figure(Chart("t", "", 1.0, [Line("a", [1.0]), Line("b", [3.0])], stacked=True, tones=("good", "late"), reach=[4.0]))
    areas = re.findall(r'<path class="area (\w+)" d="M([\d.]+) ([\d.]+)', drawn)
    height = 230 - 10 - 30
    assert areas == [("good", "52.0", f"{200 - height / 4:.1f}"), ("late", "52.0", f"{200 - height:.1f}")]


def test_G1_nothing_to_show_is_said() -> None:
    assert "Nothing to show." in figure(Chart("t", "s", 1.0, [Line("a", [None, None])]))


def told(arrived_s: float, end: str = "in time", tenant: str = "acme", tokens: int = 10, **times: float | None) -> Told:
    given = {"sent_s": arrived_s + 0.5, "first_byte_s": arrived_s + 1.0, "ended_s": arrived_s + 2.0, **times}
    return Told(arrived_s=arrived_s, end=end, tenant=tenant, service_class="interactive", tokens=tokens, **given)  # type: ignore[arg-type]


def test_G1_curves_of_three_arrivals_by_hand() -> None:
    arrivals = [
        told(0.0),
        told(0.2, "late", first_byte_s=3.2),
        told(1.0, "refused", sent_s=None, first_byte_s=None, ended_s=1.0),
    ]
    found = series(arrivals, [(0.4, 0.5), (1.7, 0.75)], 3.0)
    assert found == {
        "bin_s": 0.5,
        "per_s": {
            "in time": [2.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "late": [2.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "refused": [0.0, 0.0, 2.0, 0.0, 0.0, 0.0],
            "left": [0.0] * 6,
            "failed": [0.0] * 6,
        },
        "waiting": [1, 1, 0, 0, 0, 0],
        "running": [0, 1, 2, 2, 1, 0],
        "kv_used_ratio": [None, 0.5, 0.5, 0.5, 0.75, 0.75],
        "ttft_p95_s": {"interactive": [3.0, None, None, None, None, None]},
        "tokens_by_tenant": {"acme": 30},
    }


def test_G1_many_tenants_are_added_up() -> None:
    found = series([told(0.0, tenant=f"t{number:02d}", tokens=100 - number) for number in range(20)], [], 1.0)
    tokens = found["tokens_by_tenant"]
    assert list(tokens)[:2] == ["t00", "t01"]
    assert len(tokens) == 13
    assert tokens[OTHERS] == sum(100 - number for number in range(12, 20))


@pytest.mark.parametrize(
    ("outcome", "in_slo", "left", "end"),
    [
        ("completed", True, False, "in time"),
        ("completed", False, False, "late"),
        ("replayed", False, False, "late"),
        ("completed", True, True, "left"),
        ("cancelled", False, False, "left"),
        ("refused", False, False, "refused"),
        ("expired", False, True, "refused"),
        ("unknown", False, False, "refused"),
        ("failed", False, False, "failed"),
        ("unfinished", False, False, "failed"),
    ],
)
def test_G1_each_outcome_has_one_colour(outcome: str, in_slo: bool, left: bool, end: str) -> None:
    assert end_of(outcome, in_slo=in_slo, left=left) == end
