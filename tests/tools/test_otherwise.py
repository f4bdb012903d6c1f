"""What another policy would have said to one request with everything else as it was (F2, `headworks explain --policy`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from logged_story import logged, overload

from headworks.core.policy import Policy
from headworks.gateway import decisions
from headworks.tools.decision_log import LogError, lives
from headworks.tools.otherwise import Otherwise, otherwise

POOL = "main"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    logged(directory, overload())
    return directory


@pytest.fixture(scope="module")
def own(log: Path) -> Policy:
    return lives(log)[0].policies[0][1]


def refused(log: Path, reason: str, number: int = 5) -> list[str]:
    """Arrivals that were refused for a reason, some of them."""
    (life,) = lives(log)
    names = [one.ended.id for one in life.arrivals if one.ended.reason == reason]
    assert len(names) > number, f"hardly anybody was refused for {reason}"
    return names[:: len(names) // number][:number]


def asked(log: Path, name: str, policy: Policy) -> Otherwise:
    (found,) = otherwise(log, decisions.find(log, name), policy)
    return found


def said(found: Otherwise) -> tuple[str, str]:
    assert found.line is not None
    record: dict[str, Any] = found.line["record"]
    return record["outcome"], record["reason"]


def test_F2_its_own_policy_says_the_same_once_more(log: Path, own: Policy) -> None:
    for name in [*refused(log, "queue_delay_exceeded"), *refused(log, "tenant_capacity_exceeded", 2)]:
        found = asked(log, name, own)
        assert found.holds, (found.logged, found.again)
        assert found.line is not None
        first = next(line for line in decisions.find(log, name) if line["kind"] == "decision")["record"]
        again = found.line["record"]
        assert again["outcome"] == first["outcome"]
        assert again["outcome"] != "refuse" or again["reason"] == first["reason"]
        made = [[(one["check"], one["unit"], one["passed"]) for one in record["verdicts"]] for record in (again, first)]
        assert made[0] == made[1], "each comparison is made once more; limits that are learnt are near what they were"


def test_F2_a_limit_that_is_lifted_lets_in_whom_it_kept_out(log: Path, own: Policy) -> None:
    patient = {name: replace(one, ttft_slo_s=60.0, wait_s_max=60.0) for name, one in own.classes.items()}
    other = replace(own, version="another", classes=patient)
    for name in refused(log, "queue_delay_exceeded"):
        found = asked(log, name, other)
        assert (found.holds, found.policy_version) == (True, "another")
        assert said(found)[0] in ("admit", "queue")


def test_F2_a_limit_that_is_drawn_in_keeps_out_whom_it_let_in(log: Path, own: Policy) -> None:
    (life,) = lives(log)
    admitted = next(one.ended.id for one in life.arrivals if one.ended.outcome == "completed")
    small = {name: replace(one, active_tokens_max=1) for name, one in own.tenants.items()}
    found = asked(log, admitted, replace(own, version="another", tenants=small))
    assert found.holds and said(found) == ("refuse", "request_exceeds_capacity")
    frozen = {name: replace(one, frozen=True) for name, one in own.tenants.items()}
    assert said(asked(log, admitted, replace(own, version="another", tenants=frozen))) == ("refuse", "tenant_frozen")


def test_F2_a_tenant_that_the_other_policy_does_not_have_is_not_let_in(log: Path, own: Policy) -> None:
    name = refused(log, "queue_delay_exceeded")[0]
    (life,) = lives(log)
    tenant = next(one.ended.key.tenant for one in life.arrivals if one.ended.id == name)
    without = {key: one for key, one in own.tenants.items() if key != tenant}
    found = asked(log, name, replace(own, tenants=without))
    assert found.holds and found.line is None


def test_F2_what_has_no_outcome_in_the_log_cannot_be_asked_again(log: Path, own: Policy) -> None:
    name = refused(log, "queue_delay_exceeded")[0]
    records = decisions.find(log, name)
    records[0]["record"]["id"] = "never-ended"
    with pytest.raises(LogError, match="never-ended is not in the log as a whole"):
        otherwise(log, records, own)
