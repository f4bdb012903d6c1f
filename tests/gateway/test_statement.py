"""The statement: who caused what the engines of a period cost, to the last billionth, from the usage journal alone (F7)."""

from __future__ import annotations

import csv
import io
import random
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from headworks.core.quota import Period
from headworks.gateway.statement import Statement, Sums, statement
from headworks.gateway.statement_shown import (
    CENT,
    Unnamed,
    apportioned,
    as_csv,
    as_page,
    as_values,
    parts_named,
    period_named,
    rows,
    table,
)

DAY_S = 1_796_083_200
"""2026-11-30T00:00:00Z... of a Tuesday: 2026-12-01."""
GPU = 5_120_000_000
"""$5.12 an hour."""
HOUR = Period("hour", DAY_S, DAY_S + 3_600)


def rates(at_s: float = DAY_S, per_h: int = GPU, replicas: tuple[str, ...] = ("llama/0",)) -> dict[str, object]:
    by_pool = {"llama": {"replicas": list(replicas), "nanomoney_per_h": per_h}} if replicas else {}
    return {"rates": by_pool, "price_version": "p", "at_utc_s": at_s}


def ran(sent_s: float, ended_s: float, end: str = "completed", tenant: str = "acme", **more: object) -> dict[str, object]:
    given = {
        "tenant": tenant,
        "client": f"{tenant}/1",
        "model": "m",
        "pool": "llama",
        "replica": "llama/0",
        "execution": f"{tenant}-{sent_s}-{ended_s}",
        "charged_utc_s": int(DAY_S + sent_s),
        "sent_utc_s": DAY_S + sent_s,
        "ended_utc_s": DAY_S + ended_s,
        "sequences": 1,
        "prompt_tokens": 30,
        "output_tokens": 20,
        "reserved_tokens": 100,
        "end": end,
        "billed_tokens": 50,
        "billed_nanomoney": 5_000_000,
    }
    return given | more


def write(directory: Path, *lines: dict[str, object], name: str = "usage-20261201T000000-1-000.jsonl") -> None:
    directory.mkdir(exist_ok=True)
    with (directory / name).open("ab") as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")


def made(directory: Path, *lines: dict[str, object], period: Period = HOUR, now_s: float = DAY_S + 86_400) -> Statement:
    write(directory, *lines)
    found = statement(directory, period, now_s)
    assert found.differences() == []
    return found


def test_the_day_of_this_file_is_the_first_of_december() -> None:
    assert period_named("2026-12-01") == Period("2026-12-01", DAY_S, DAY_S + 86_400)


# the goldens of F7: $5.12 an hour


def test_F7_one_doomed_request_of_2_315_s_costs_0_00329(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 2.315, "cancelled"))
    assert found.total.wasted_nanomoney == 3_292_444
    assert f"{found.total.wasted_nanomoney / 1e9:.5f}" == "0.00329"


def test_F7_two_hundred_of_them_cost_0_658(tmp_path: Path) -> None:
    doomed = [ran(3 * number, 3 * number + 2.315, "cancelled") for number in range(200)]
    found = made(tmp_path, rates(), *doomed)
    assert f"{found.total.wasted_nanomoney / 1e9:.3f}" == "0.658"
    assert found.total.wasted_nanomoney + found.pools["llama"].idle_nanomoney == GPU


def test_F7_ten_minutes_cost_0_853_and_with_nine_of_ten_answers_for_nobody_0_768_are_wasted(tmp_path: Path) -> None:
    answers = [ran(6 * n, 6 * n + 6, "completed" if n % 10 == 0 else "cancelled") for n in range(100)]
    found = made(tmp_path, rates(), *answers, period=Period("ten minutes", DAY_S, DAY_S + 600))
    assert f"{found.pools['llama'].total_nanomoney / 1e9:.3f}" == "0.853"
    assert f"{found.total.wasted_nanomoney / 1e9:.3f}" == "0.768"
    assert f"{found.total.used_nanomoney / 1e9:.3f}" == "0.085"


# who was inside at the same time


def test_F7_two_that_are_inside_at_once_share_that_time(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 900), ran(300, 1_500, tenant="batchco"))
    by_tenant = rows(found, ("tenant",))
    third = GPU // 12  # of an hour, 300 s
    assert by_tenant["acme",].cost_nanomoney == pytest.approx(third + third, abs=2)
    assert by_tenant["batchco",].cost_nanomoney == pytest.approx(third + 2 * third, abs=2)
    assert found.pools["llama"].idle_nanomoney == pytest.approx(7 * third, abs=8)


def test_F7_an_execution_of_three_sequences_has_three_parts(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 3_600, sequences=3), ran(0, 3_600, tenant="batchco"))
    assert {name[0]: row.cost_nanomoney for name, row in rows(found, ("tenant",)).items()} == {
        "acme": 3 * GPU // 4,
        "batchco": GPU // 4,
    }


def test_F7_what_runs_over_the_edge_of_a_period_costs_what_is_within(tmp_path: Path) -> None:
    lines = (rates(DAY_S - 7_200), ran(-1_800, 1_800), ran(3_000, 4_200, tenant="batchco"))
    found = made(tmp_path, *lines)
    assert found.rows["acme", "acme/1", "m", "llama"].cost_nanomoney == GPU // 2
    assert found.rows["acme", "acme/1", "m", "llama"].executions == 0, "it belongs to the hour in which it was admitted"
    assert found.rows["batchco", "batchco/1", "m", "llama"].cost_nanomoney == pytest.approx(GPU / 6, abs=1)
    assert found.rows["batchco", "batchco/1", "m", "llama"].executions == 1
    whole = statement(tmp_path, Period("both", DAY_S - 3_600, DAY_S + 7_200), DAY_S + 86_400)
    assert whole.pools["llama"].total_nanomoney == 3 * GPU
    assert whole.total.cost_nanomoney == pytest.approx(GPU + GPU / 3, abs=1)


def test_F7_what_ended_after_midnight_stands_in_the_next_file_and_is_part_of_both_days(tmp_path: Path) -> None:
    write(tmp_path, rates(), name="usage-20261201T000000-1-000.jsonl")
    write(tmp_path, rates(DAY_S + 86_400), ran(84_600, 88_200), name="usage-20261202T000000-1-000.jsonl")
    first = statement(tmp_path, period_named("2026-12-01"), DAY_S + 10 * 86_400)
    second = statement(tmp_path, period_named("2026-12-02"), DAY_S + 10 * 86_400)
    both = statement(tmp_path, Period("both", DAY_S, DAY_S + 2 * 86_400), DAY_S + 10 * 86_400)
    assert first.total.cost_nanomoney == second.total.cost_nanomoney == GPU // 2
    assert (first.total.executions, second.total.executions, both.total.executions) == (1, 0, 1)
    assert both.total.cost_nanomoney == GPU
    assert [one.pools["llama"].total_nanomoney for one in (first, second, both)] == [24 * GPU, 24 * GPU, 48 * GPU]


def test_F7_what_waited_for_the_disk_at_midnight_stands_in_the_old_file_and_counts(tmp_path: Path) -> None:
    write(tmp_path, ran(10, 20), name="usage-20261130T235900-1-000.jsonl")
    found = made(tmp_path, rates(), ran(30, 40))
    assert found.total.executions == 2 and found.total.used_nanomoney == pytest.approx(20 * GPU / 3_600, abs=2)


def test_F7_a_price_that_changes_holds_from_then_on_and_an_engine_that_is_named_no_more_costs_nothing(tmp_path: Path) -> None:
    lines = (rates(), rates(DAY_S + 900, 2 * GPU, ("llama/0", "llama/1")), rates(DAY_S + 1_800, 0, ()))
    found = made(tmp_path, *lines, ran(0, 3_600))
    assert found.pools["llama"].total_nanomoney == GPU // 4 + 2 * (2 * GPU) // 4
    assert found.total.cost_nanomoney == GPU // 4 + 2 * GPU // 4
    assert found.pools["llama"].idle_nanomoney == 2 * GPU // 4


def test_F7_engines_cost_from_when_they_are_known_and_the_last_prices_of_before_hold(tmp_path: Path) -> None:
    found = made(tmp_path, rates(DAY_S + 1_800))
    assert found.pools["llama"].total_nanomoney == GPU // 2
    later = statement(tmp_path, period_named("2026-12-10T07"), DAY_S + 30 * 86_400)
    assert later.pools["llama"].total_nanomoney == GPU == later.pools["llama"].idle_nanomoney


def test_F7_a_period_that_is_not_over_is_counted_up_to_now(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 60), now_s=DAY_S + 359.1)
    assert found.ends_s == DAY_S + 360
    assert found.pools["llama"].total_nanomoney == GPU // 10


def test_F7_two_gateways_divide_one_engine_and_a_killed_ones_last_lines_cost_no_cent(tmp_path: Path) -> None:
    write(tmp_path, rates(), ran(0, 1_800))
    other = tmp_path / "usage-20261201T000005-2-000.jsonl"
    write(tmp_path, rates(DAY_S + 5), ran(0, 1_800, tenant="batchco"), name=other.name)
    with other.open("ab") as file:
        file.write(b'{"tenant":"batchco","client":"bat')  # cut short
    found = statement(tmp_path, HOUR, DAY_S + 86_400)
    assert found.differences() == []
    assert found.unread == 1
    assert {name[0]: row.cost_nanomoney for name, row in found.rows.items()} == {"acme": GPU // 4, "batchco": GPU // 4}
    assert found.pools["llama"].idle_nanomoney == GPU // 2


def test_F7_what_is_bought_by_the_token_costs_what_was_paid(tmp_path: Path) -> None:
    bought = ran(0, 60, pool="cloud", replica="cloud/0", paid_nanomoney=7_500_000)
    found = made(tmp_path, rates(), bought)
    assert found.pools["cloud"].total_nanomoney == 7_500_000
    assert found.rows["acme", "acme/1", "m", "cloud"].used_nanomoney == 7_500_000
    assert found.pools["llama"].idle_nanomoney == GPU


def test_F7_avoided_work_is_priced_by_what_a_reserved_token_cost(tmp_path: Path) -> None:
    refused = {"tenant": "acme", "client": "acme/1", "model": "m", "pool": "llama"}
    refused |= {"avoided_requests": 3, "avoided_tokens": 300, "at_utc_s": DAY_S + 100.0}
    left = ran(1_800, 3_600, "cancelled", tenant="batchco")
    found = made(tmp_path, rates(), ran(0, 1_800), left, refused)
    token = GPU // 200
    row = found.rows["acme", "acme/1", "m", "llama"]
    assert (row.avoided_requests, row.avoided_tokens, row.avoided_nanomoney) == (3, 300, 300 * token)
    row = found.rows["batchco", "batchco/1", "m", "llama"]
    assert (row.avoided_requests, row.avoided_tokens, row.avoided_nanomoney) == (0, 50, 50 * token), "what it had not written"


@pytest.mark.parametrize("seed", range(20))
def test_F7_rows_and_idle_time_are_the_cost_of_the_pool_to_the_billionth(tmp_path: Path, seed: int) -> None:
    print(f"pytest tests/gateway/test_statement.py -k 'billionth and {seed}'")
    chance = random.Random(seed)
    replicas = tuple(f"llama/{number}" for number in range(3))
    lines = [rates(DAY_S - 60, chance.randrange(1, GPU), replicas)]
    for _ in range(200):
        sent_s = chance.uniform(-100, 3_600)
        more = {"replica": chance.choice(replicas), "sequences": chance.randrange(1, 5)}
        tenant = chance.choice(("acme", "batchco", "third"))
        ended_s = sent_s + chance.expovariate(1 / 60)
        lines.append(ran(sent_s, ended_s, chance.choice(("completed", "cancelled", "failed")), tenant, **more))
    lines.insert(80, rates(DAY_S + 1_234.567, chance.randrange(1, GPU), replicas[:2]))
    found = made(tmp_path, *lines)
    parts = sum(row.cost_nanomoney for row in found.rows.values()) + found.pools["llama"].idle_nanomoney
    assert parts == found.pools["llama"].total_nanomoney > 0
    assert abs(parts - found.pools["llama"].expected_nanomoney) <= 3


def test_F7_a_sum_that_is_wrong_is_said(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 60))
    found.row(("acme", "acme/1", "m", "llama")).used_nanomoney += 1
    assert found.differences() == ["llama cost 5120000000 billionths, and its parts are 5120000001."]


# as it is shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], []), ([0], [0]), ([15], [2]), ([14, 14, 14], [2, 1, 1]), ([4, 4, 4, 4], [1, 1, 0, 0]), ([100, 1], [10, 0])],
)
def test_F7_what_is_printed_adds_up(values: list[int], shown: list[int]) -> None:
    assert apportioned(values, 10) == shown


@pytest.mark.parametrize("seed", range(10))
def test_F7_a_printed_column_is_the_rounded_total_whatever_is_in_it(seed: int) -> None:
    values = [random.Random(seed).randrange(10**10) for _ in range(1 + seed)]
    assert sum(apportioned(values, CENT)) == (sum(values) + CENT // 2) // CENT


def test_F7_a_table_has_a_row_for_each_name_and_says_what_was_idle(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 900), ran(900, 1_800, "cancelled", tenant="batchco"))
    assert table(found, ("tenant",)) == [
        ("tenant", "executions", "tokens", "billed", "used", "wasted", "cost", "avoided"),
        ("acme", "1", "50", "0.00500", "1.28000", "0.00000", "1.28000", "0.00000"),
        ("batchco", "1", "50", "0.00500", "0.00000", "1.28000", "1.28000", "0.64000"),
        ("(idle)", "", "", "", "", "", "2.56000", ""),
        ("total", "2", "100", "0.01000", "1.28000", "1.28000", "5.12000", "0.64000"),
    ]


def test_F7_the_csv_has_every_digit_and_adds_up_and_no_name_is_a_formula(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 1.001), ran(0.5, 2.315, tenant="=cmd"))
    lines = list(csv.DictReader(io.StringIO(as_csv(found, ("tenant", "model")))))
    assert [line["tenant"] for line in lines] == ["'=cmd", "acme", "(idle)"]
    costs = [line["cost"].replace(".", "") for line in lines]
    assert sum(map(int, costs)) == GPU
    assert all(line["used"] == line["cost"] for line in lines[:2])


def test_F7_the_page_needs_nothing_else_and_escapes_names(tmp_path: Path) -> None:
    page = as_page(made(tmp_path, rates(), ran(0, 60, tenant="<b>")), ("tenant",))
    assert "<td>&lt;b&gt;</td>" in page and "<b>" not in page
    assert "http" not in page and "All rows and idle time add up" in page


def test_F7_a_tenant_sees_its_own_rows_and_nothing_of_the_pools(tmp_path: Path) -> None:
    found = made(tmp_path, rates(), ran(0, 900), ran(0, 900, tenant="batchco"))
    own = as_values(found, ("client", "model"), "acme")
    assert own.keys() == {"begins", "ends", "rows"}
    assert [(row["client"], row["cost_nanomoney"]) for row in own["rows"]] == [("acme/1", GPU // 8)]


def test_F7_a_period_has_a_name() -> None:
    assert period_named("2026-12-01T07") == Period("2026-12-01T07", DAY_S + 7 * 3_600, DAY_S + 8 * 3_600)
    month = period_named("2026-12")
    assert (month.begins_s, month.ends_s) == (DAY_S, DAY_S + 31 * 86_400)
    for wrong in ("", "2026", "2026-13", "2026-02-30", "2026-12-01T25", "yesterday", "2026-12-01T7"):
        with pytest.raises(Unnamed):
            period_named(wrong)
    assert parts_named("model, tenant") == ("tenant", "model")
    with pytest.raises(Unnamed, match="'colour' is none of tenant, client, model, pool"):
        parts_named("tenant,colour")


def test_F7_sums_are_added_field_by_field() -> None:
    one = Sums(executions=1, used_nanomoney=2)
    one.add(Sums(executions=2, wasted_nanomoney=3))
    assert (one.executions, one.cost_nanomoney) == (3, 5)


def busy_day(directory: Path, executions: int) -> Period:
    """So many in a day, of which a few are always inside, by two engines and in no order of their beginnings."""
    rng = random.Random(7)
    lines = []
    for number in range(executions):
        sent_s = 86_000.0 * number / executions + 300.0 * rng.random()
        replica = f"llama/{number % 2}"
        lines.append(ran(sent_s, sent_s + 20.0 * rng.random(), ("completed", "cancelled")[number % 3 == 0], replica=replica))
    write(directory, rates(replicas=("llama/0", "llama/1")), *lines)
    return Period("day", DAY_S, DAY_S + 86_400)


def test_F7_sorted_in_many_runs_a_statement_is_the_same_to_the_billionth(tmp_path: Path) -> None:
    day = busy_day(tmp_path, 2_000)
    whole, in_runs = statement(tmp_path, day, DAY_S + 90_000), statement(tmp_path, day, DAY_S + 90_000, run_max=37)
    assert whole.rows == in_runs.rows and whole.pools == in_runs.pools
    assert in_runs.differences() == []
    assert in_runs.pools["llama"].total_nanomoney == 2 * 24 * GPU


def test_F7_a_statement_takes_no_more_memory_for_a_longer_journal(tmp_path: Path) -> None:
    """It held three days of lines: 12,000 more of them took 12 MB more."""
    peaks = []
    for executions in (3_000, 15_000):
        directory = tmp_path / str(executions)
        directory.mkdir()
        day = busy_day(directory, executions)
        tracemalloc.start()
        statement(directory, day, DAY_S + 90_000, run_max=1_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_500_000, peaks
