"""The admin port: probes, metrics, and what needs the admin key (F12)."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from headworks.core.types import Usage
from headworks.gateway.admin import admin_app
from headworks.gateway.dashboard.routes import dashboard_routes
from headworks.gateway.feed import Feed
from headworks.gateway.looks import Looks
from headworks.gateway.metrics import Registry
from headworks.ledgers.errors import LedgerError


class SaidLedger:
    """A ledger that says what it is told to say."""

    def __init__(self, *differences: str, fault: str = "") -> None:
        self.differences = list(differences)
        self.fault = fault
        self.declared: list[tuple[str, str, str, str]] = []

    async def show(self) -> Any:
        if self.fault:
            raise LedgerError(self.fault)
        return [Usage(1, 0, 2, 0.5, "stop", True)]

    async def audit(self) -> list[str]:
        return self.differences

    async def declare(self, verb: str, subject: str, reason: str, actor: str) -> Any:
        self.declared.append((verb, subject, reason, actor))
        return {"outcome": "ok"}


EMPTY: dict[str, Any] = {
    "at_s": 1.5,
    "ttft_bounds_s": [],
    **{section: {} for section in ("tenants", "classes", "decided", "refusals")},
    "tokens": {"output_total": 0, "wasted_total": 0},
}


def client(admin_key: str | None = None, **answers: Any) -> TestClient:
    registry = Registry(list)
    registry.allow("pool", ["llama"])
    registry.counter("releases_total", "llama", "E1").add()
    given: dict[str, Any] = {
        "obstacles": list,
        "metrics": registry.render,
        "looks": Looks(lambda: {**deepcopy(EMPTY), "pools": {"llama": {"tokens": 5}}, "wait_s": float("inf")}),
        "ledger": SaidLedger(),
        "explain": explained,
    }
    given |= answers
    return TestClient(admin_app(**{"feed": Feed(given["looks"].look)} | given, admin_key=admin_key))


async def explained(name: str) -> dict[str, Any]:
    return {"id": name, "story": ["It was."] * (name == "d1"), "records": [{"id": name}] * (name == "d1")}


def test_F12_alive_is_alive() -> None:
    assert client(obstacles=lambda: ["draining"]).get("/livez").status_code == 200


def test_F12_ready_says_what_is_in_the_way() -> None:
    assert client().get("/readyz").json() == {"ready": True, "obstacles": []}
    answer = client(obstacles=lambda: ["The ledger does not answer."]).get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "obstacles": ["The ledger does not answer."]}


def test_F12_metrics_are_prometheus_text() -> None:
    answer = client(admin_key="secret").get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    (family,) = text_string_to_metric_families(answer.text)
    assert family.samples[0].labels == {"pool": "llama", "evidence": "E1"}


def test_F12_plain_values_and_our_types_become_json() -> None:
    answer = client()
    shown = answer.get("/admin/snapshot").json()
    assert (shown["pools"], shown["wait_s"]) == ({"llama": {"tokens": 5}}, None)
    assert answer.get("/admin/ledger").json()[0]["output_tokens"] == 2
    assert answer.get("/admin/ledger/audit").json() == {"holds": True, "differences": []}
    answer = client(ledger=SaidLedger("pool llama tokens: counter 5, parts 4"))
    assert answer.get("/admin/ledger/audit").json()["holds"] is False


def test_F12_a_ledger_that_cannot_be_asked_is_said_to_be_unavailable() -> None:
    answer = client(ledger=SaidLedger(fault="The ledger at h:6379 does not answer")).get("/admin/ledger")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ledger_unavailable")


def test_F12_what_an_operator_declares_needs_the_admin_key_and_a_reason() -> None:
    ledger = SaidLedger()
    asked = {"execution": "x1", "reason": "its engine was scrapped"}
    assert client(ledger=ledger).post("/admin/ledger/release", json=asked).status_code == 403
    bearer = {"Authorization": "Bearer secret"}
    known = client("secret", ledger=ledger)
    assert known.post("/admin/ledger/release", json=asked).status_code == 401
    assert known.post("/admin/ledger/release", json={"execution": "x1"}, headers=bearer).status_code == 400
    assert known.post("/admin/ledger/withdraw", json=asked, headers=bearer).status_code == 400
    for line_end in "\n\r\x85\u2028":
        forged = {**asked, "reason": f"why{line_end}an operator declares: release x2: because"}
        assert known.post("/admin/ledger/release", json=forged, headers=bearer).status_code == 400
    assert ledger.declared == []
    assert known.post("/admin/ledger/release", json=asked, headers=bearer).json() == {"outcome": "ok"}
    assert ledger.declared == [("release", "x1", "its engine was scrapped", "server.admin_key")]


def test_F12_explain_finds_or_says_404() -> None:
    answer = client().get("/admin/explain/d1")
    assert (answer.status_code, answer.json()) == (200, {"id": "d1", "story": ["It was."], "records": [{"id": "d1"}]})
    assert client().get("/admin/explain/d2").status_code == 404
    assert len(client().get("/admin/explain/" + "x" * 300).json()["id"]) == 256


def test_F9_a_snapshot_has_a_version_by_which_it_can_be_had_again() -> None:
    answer = client()
    first = answer.get("/admin/snapshot")
    assert first.headers["cache-control"] == "no-store"
    assert (first.json()["version"], answer.get("/admin/state").json()["version"]) == (1, 2)
    assert answer.get("/admin/snapshot?version=1").content == first.content
    for version in ("3", "0", "-1", "x", "", "1.0", "١", "9" * 5_000):
        refused = answer.get("/admin/snapshot", params={"version": version})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found"), version


def test_F9_the_page_is_open_and_brings_nothing_from_elsewhere_and_no_figure() -> None:
    answer = client(admin_key="secret", looks=Looks(_nobody_looks))
    names = {route.path for route in dashboard_routes()}
    assert names >= {"/dashboard", "/dashboard/page.css", "/dashboard/page.js"}
    for name in names:
        shown = answer.get(name)
        assert shown.status_code == 200, name
        policy = shown.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy and "unsafe" not in policy
        assert (shown.headers["x-content-type-options"], shown.headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert answer.get(name, headers={"If-None-Match": shown.headers["etag"]}).status_code == 304
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", shown.text) == []
    page = answer.get("/dashboard").text
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page) == []
    parts = re.findall(r'(?:href|src)="([^"#]+)"', page)
    assert {f"/{part}" for part in parts} <= names


def _nobody_looks() -> dict[str, Any]:
    raise AssertionError("the page itself has no figures")


PATHS = ["/admin/snapshot", "/admin/ledger", "/admin/ledger/audit", "/admin/explain/d1", "/admin/state"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", [None, "secret", "Bearer", "Bearer wrong", "Basic secret", "Bearer secret2", "Bearer sécret"])
def test_H2_admin_wants_its_own_key(path: str, given: str | None) -> None:
    answer = client(admin_key="secret")
    headers = [] if given is None else [(b"authorization", given.encode())]
    refused = answer.get(path, headers=headers)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert answer.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200


@pytest.mark.parametrize("host", ["admin/livez?", "evil.example", "127.0.0.1:1/livez", "a/abc?d="])
@pytest.mark.parametrize("path", PATHS)
def test_H3_no_host_header_opens_a_route(path: str, host: str) -> None:
    assert client(admin_key="secret").get(path, headers={"Host": host}).status_code in (400, 401)


@pytest.mark.parametrize("path", ["/livez/", "/metrics/", "/admin/snapshot/", "/admin/ledger/release/", "/dashboard/"])
def test_H3_no_answer_sends_anybody_to_the_host_that_was_named(path: str) -> None:
    """A path with a slash too many was sent on to `http://HOST/path`, before any key was asked for."""
    answer = client(admin_key="secret").get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_H3_routes_are_these_and_read_only() -> None:
    answer = client()
    assert answer.get("/admin").status_code == 404
    assert answer.get("/").status_code == 404
    for path in [*PATHS, "/livez", "/readyz", "/metrics"]:
        assert answer.post(path).status_code == 405
