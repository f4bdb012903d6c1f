"""The queue of a pool: its sums, its order, and this gateway's own view of turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headworks.core.fair import ONE_FLOW
from headworks.core.life import Life
from headworks.core.policy import ClassPolicy, Policy, TenantPolicy
from headworks.core.queue import PoolQueue, WaitingLine
from headworks.core.types import Forecast, Work
from tests.core.driver import Bench, policy

FORECAST = Forecast(None, 0.0, None, None, None, 1.0, "none")


class Scene:
    """Lanes of two classes and two tenants, and a queue of its own."""

    def __init__(self, kind: str = "wfq") -> None:
        self.bench = Bench(shared(kind))
        self.queue = PoolQueue()
        self._number = 0

    def life(self, tokens: int, tenant: str = "acme", service_class: str = "interactive", **changed: Any) -> Life:
        """Not in the queue yet."""
        self._number += 1
        request = self.bench.request(tokens, tenant=tenant, service_class=service_class, prompt_bytes=tokens * 3, **changed)
        lane = self.bench.gate._desk.lane(tenant, service_class, "p")
        return Life(request, self._number, lane, Work(tokens, tokens, 1, 0.0, tokens, 1), FORECAST)

    def wait(self, *lives: Life) -> None:
        for life in lives:
            self.queue.add(life)

    def sums(self) -> tuple[int, int]:
        return self.queue.requests, self.queue.tokens


def shared(kind: str) -> Policy:
    """Interactive weighs 4, bulk 1; acme 3, batchco 2."""
    made = policy(kind=kind)
    classes = {"interactive": ClassPolicy("interactive", share=4.0), "bulk": ClassPolicy("bulk", share=1.0)}
    tenants = {name: TenantPolicy(name, share, tuple(classes)) for name, share in (("acme", 3.0), ("batchco", 2.0))}
    return replace(made, classes=classes, tenants=tenants)


def class_sums(queue: PoolQueue, name: str) -> tuple[int, int, int, float, float]:
    one = queue.of_class(name)
    return one.requests, one.tokens, one.bytes, one.share, one.tenants_share


def line_sums(line: WaitingLine) -> tuple[int, int, int, float]:
    return line.requests, line.tokens, line.bytes, line.share


def test_B6_sums_follow_whoever_comes_and_goes() -> None:
    scene = Scene()
    first, second, third = scene.life(10), scene.life(20), scene.life(40, tenant="batchco")
    bulk = scene.life(80, service_class="bulk")
    scene.wait(first, second, third, bulk)
    queue = scene.queue
    assert scene.sums() == (4, 150)
    assert class_sums(queue, "interactive") == (3, 70, 210, 4.0, 5.0)
    assert class_sums(queue, "bulk") == (1, 80, 240, 1.0, 3.0)
    assert line_sums(queue.line(("interactive", "acme"))) == (2, 30, 90, 3.0)
    assert line_sums(queue.line(("interactive", "batchco"))) == (1, 40, 120, 2.0)
    assert queue.lives() == [first, second, third, bulk]
    assert first in queue.line(("interactive", "acme"))
    queue.remove(first)
    assert first not in queue.line(("interactive", "acme"))
    assert scene.sums() == (3, 140)
    assert class_sums(queue, "interactive") == (2, 60, 180, 4.0, 5.0)
    assert line_sums(queue.line(("interactive", "acme"))) == (1, 20, 60, 3.0)
    queue.remove(second)
    assert class_sums(queue, "interactive") == (1, 40, 120, 4.0, 2.0)
    assert line_sums(queue.line(("interactive", "acme"))) == (0, 0, 0, 0.0)
    queue.remove(third)
    assert class_sums(queue, "interactive") == (0, 0, 0, 4.0, 0.0)
    queue.remove(bulk)
    assert scene.sums() == (0, 0)
    assert class_sums(queue, "interactive") == (0, 0, 0, 0.0, 0.0)
    assert queue.lines == {}
    assert list(queue.in_turn()) == []


def test_all_that_waits_is_told_in_order_of_arrival_over_all_flows() -> None:
    scene = Scene()
    lives = [scene.life(1), scene.life(1, tenant="batchco"), scene.life(1)]
    scene.wait(*lives)
    assert [life.number for life in scene.queue.lives()] == [1, 2, 3]


def test_a_line_stands_in_order_of_deadline_or_of_arrival_and_stands_anew_when_that_changes() -> None:
    scene = Scene()
    lives = [scene.life(1, start_by_s=start_by_s) for start_by_s in (30.0, 10.0, 20.0)]
    line = WaitingLine(("interactive", "acme"), 2.5)
    assert (line.share, line.told_s, line.is_marked, line.is_tried) == (2.5, float("-inf"), False, False)
    for life in lives:
        line.add(life)
    assert [life.number for life in line.lives()] == [1, 2, 3]
    line.order(by_deadline=True)
    assert [life.number for life in line.lives()] == [2, 3, 1]
    assert line.first() is lives[1]
    assert line.behind_first(1) == [lives[2]]
    assert line.behind_first(5) == [lives[2], lives[0]]
    assert line.newest() is lives[0]
    late = scene.life(1, start_by_s=15.0)
    line.add(late)
    assert [life.number for life in line.lives()] == [2, 4, 3, 1]
    line.order(by_deadline=True)
    line.remove(lives[2])
    assert [life.number for life in line.lives()] == [2, 4, 1]
    line.order(by_deadline=False)
    assert [life.number for life in line.lives()] == [1, 2, 4]
    assert (lives[0] in line, lives[2] in line) == (True, False)


def test_D1_turns_go_by_what_was_asked_for_while_others_waited() -> None:
    scene = Scene()
    scene.wait(*(scene.life(12) for _ in range(3)), *(scene.life(12, tenant="batchco") for _ in range(3)))
    scene.wait(scene.life(12, service_class="bulk"))

    def turns() -> list[tuple[str, str]]:
        return [line.flow for line in scene.queue.in_turn()]

    def serve(flow: tuple[str, str]) -> Life:
        life = scene.queue.line(flow).first()
        scene.queue.remove(life)
        line = scene.queue.serve(life, 5.0)
        assert line is scene.queue.line(flow)
        assert (life.turn_tokens, life.turn_share) == (12, {"acme": 3.0, "batchco": 2.0}[flow[1]])
        return life

    i_acme, i_batch, b_acme = ("interactive", "acme"), ("interactive", "batchco"), ("bulk", "acme")
    assert turns() == [b_acme, i_acme, i_batch]
    assert scene.queue.line(i_acme).is_marked is False
    serve(i_acme)
    assert scene.queue.line(i_acme).is_marked is True
    assert turns() == [b_acme, i_batch, i_acme]
    served = serve(i_batch)
    assert turns() == [b_acme, i_acme, i_batch], "12 ÷ 3 is less than 12 ÷ 2"
    scene.queue.correct(served, 3)
    assert turns() == [b_acme, i_batch, i_acme], "3 ÷ 2 is less than 12 ÷ 3"
    assert served.turn_tokens == 0
    assert scene.queue._turns.finish["interactive"] == 12 / 4 + 3 / 4
    assert scene.queue.classes["interactive"].tenants.finish == {"acme": 12 / 3, "batchco": 3 / 2}
    scene.queue.correct(served, 0)
    assert turns() == [b_acme, i_batch, i_acme], "it is corrected once"
    life = scene.queue.line(b_acme).first()
    scene.queue.remove(life)
    scene.queue.serve(life, 5.0)
    scene.wait(scene.life(12, service_class="bulk"))
    assert turns() == [i_batch, i_acme, b_acme], "12 ÷ 1 is more than (12 + 3) ÷ 4"


def test_D1_who_was_sent_back_and_is_tried_is_not_asked_for_again_at_once() -> None:
    scene = Scene()
    flow = ("interactive", "acme")
    lives = [scene.life(12) for _ in range(3)]
    scene.wait(*lives)
    queue, asks = scene.queue, scene.queue.asks
    assert queue.pause(flow, 7.5, 7.0, is_short=False) == 1
    assert (queue.line(flow).is_marked, queue.line(flow).is_tried) == (True, True)
    assert asks.paused == {flow: 7.5}
    assert queue.pause(("interactive", "nobody"), 7.25, 7.0, is_short=False) == 2
    queue.remove(lives[0])
    queue.serve(lives[0], 8.0)
    assert asks.paused[flow] == 8.25
    assert queue.go_on(flow, 8.0) is True, "the others waited for that"
    assert queue.line(flow).is_tried is False
    assert flow not in asks.paused
    assert queue.go_on(flow, 8.0) is False, "nobody was paused"
    queue.remove(lives[1])
    queue.serve(lives[1], 9.0)
    assert flow not in asks.paused, "it was not sent back since"


def test_D1_where_the_pool_is_short_one_grant_lets_others_ask() -> None:
    scene = Scene()
    flow = ("interactive", "acme")
    lives = [scene.life(12) for _ in range(2)]
    scene.wait(*lives)
    scene.queue.pause(flow, 7.5, 7.0, is_short=True)
    assert scene.queue.go_on(flow, 7.0) is True
    assert scene.queue.asks.paused == {flow: 7.02}, "more of it waits, so its mark was left anew"
    scene.queue.remove(lives[0])
    scene.queue.remove(lives[1])
    assert scene.queue.go_on(flow, 7.0) is False, "nobody waits"
    assert scene.queue.asks.paused == {}


def test_D1_a_grant_marks_its_flow_anew_only_where_more_of_it_waits() -> None:
    scene = Scene()
    flow = ("interactive", "acme")
    scene.wait(scene.life(12, tenant="batchco"))
    scene.queue.pause(flow, 7.5, 7.0, is_short=True)
    assert scene.queue.go_on(flow, 7.0) is True, "others wait"
    assert scene.queue.asks.paused == {}
    scene.queue.pause(ONE_FLOW, 7.5, 7.0, is_short=True)
    assert scene.queue.go_on(ONE_FLOW, 7.0) is True
    assert scene.queue.asks.paused == {ONE_FLOW: 7.02}, "all who wait are of it"


def test_D1_a_class_that_left_begins_again_where_the_others_are() -> None:
    scene = Scene()
    bulk = scene.life(12, service_class="bulk")
    scene.wait(bulk, *(scene.life(12) for _ in range(6)))
    scene.queue.remove(bulk)
    for _ in range(5):
        life = scene.queue.line(("interactive", "acme")).first()
        scene.queue.remove(life)
        scene.queue.serve(life, 1.0)
    assert scene.queue._turns.virtual == 4 * 12 / 4
    scene.wait(scene.life(12, service_class="bulk"))
    assert scene.queue._turns.finish["bulk"] == 4 * 12 / 4


def test_D1_one_that_waits_is_more_of_its_flow() -> None:
    scene = Scene()
    flow = ("interactive", "acme")
    scene.wait(scene.life(12))
    scene.queue.pause(flow, 7.5, 7.0, is_short=True)
    assert scene.queue.go_on(flow, 7.0) is True
    assert scene.queue.asks.paused == {flow: 7.02}


def test_who_closes_its_line_leaves_nothing_behind() -> None:
    scene = Scene()
    life, other = scene.life(12), scene.life(5, tenant="batchco")
    scene.wait(life, other)
    flow = life.lane.flow
    scene.queue.pause(flow, 7.5, 7.0, is_short=False)
    scene.queue.reserved[flow] = scene.queue.observed[flow] = None
    assert [line.flow for line in scene.queue.ranked(by_tokens)] == [("interactive", "batchco"), flow]
    scene.queue.remove(life)
    assert (scene.queue.asks.paused, scene.queue.reserved, scene.queue.observed) == ({}, {}, {})
    assert [line.flow for line in scene.queue.ranked(by_tokens)] == [("interactive", "batchco")]
    assert [line.flow for line in scene.queue.in_turn()] == [("interactive", "batchco")]


def by_tokens(line: WaitingLine) -> tuple[float, ...]:
    return (line.tokens, line.first().number)


def by_arrival(line: WaitingLine) -> tuple[float, ...]:
    return (line.first().number,)


def test_D3_lines_are_kept_in_the_order_that_was_asked_for_last() -> None:
    scene = Scene("fifo")
    acme, batch = ("interactive", "acme"), ("interactive", "batchco")
    scene.wait(scene.life(10), scene.life(4, tenant="batchco"))

    def ranked(rank: Any) -> list[tuple[str, str]]:
        return [line.flow for line in scene.queue.ranked(rank)]

    assert ranked(by_tokens) == [batch, acme]
    large = scene.life(30, tenant="batchco")
    scene.wait(large)
    assert ranked(by_tokens) == [acme, batch], "34 tokens now"
    scene.queue.remove(large)
    assert ranked(by_tokens) == [batch, acme]
    assert ranked(by_arrival) == [acme, batch]
    scene.queue.remove(scene.queue.line(acme).first())
    assert ranked(by_arrival) == [batch]
    bulk = scene.life(1, service_class="bulk")
    scene.wait(bulk)
    assert ranked(by_arrival) == [batch, ("bulk", "acme")]
    scene.queue.weigh_anew()
    assert ranked(by_arrival) == [batch, ("bulk", "acme")]


def test_D3_after_a_reload_lines_are_ranked_anew() -> None:
    scene = Scene("fifo")
    scene.wait(scene.life(10), scene.life(10, tenant="batchco"))

    def heaviest(line: WaitingLine) -> tuple[float, ...]:
        return (-line.share, line.first().number)

    assert [line.flow[1] for line in scene.queue.ranked(heaviest)] == ["acme", "batchco"]
    life = scene.queue.line(("interactive", "batchco")).first()
    life.lane.tenant_policy = replace(life.lane.tenant_policy, share=9.0)
    scene.queue.weigh_anew()
    assert [line.flow[1] for line in scene.queue.ranked(heaviest)] == ["batchco", "acme"]


def test_after_a_reload_what_waits_weighs_what_its_lane_says() -> None:
    scene = Scene()
    lives = [scene.life(10), scene.life(10, tenant="batchco"), scene.life(10, service_class="bulk")]
    scene.wait(*lives)
    for life, weights in zip(lives, ((8.0, 5.0), (8.0, 1.0), (2.0, 5.0)), strict=True):
        assert life.lane.share is not None
        life.lane.share.weights = weights
    scene.queue.weigh_anew()
    assert class_sums(scene.queue, "interactive") == (2, 20, 60, 8.0, 6.0)
    assert class_sums(scene.queue, "bulk") == (1, 10, 30, 2.0, 5.0)
    assert scene.queue.line(("interactive", "batchco")).share == 1.0


def test_where_weights_do_not_decide_shares_are_those_of_the_file() -> None:
    scene = Scene("fifo")
    scene.wait(scene.life(10), scene.life(10, tenant="batchco"))
    assert class_sums(scene.queue, "interactive") == (2, 20, 60, 4.0, 5.0)
    life = scene.queue.line(("interactive", "acme")).first()
    life.turn_tokens = 10
    scene.queue.correct(life, 3)
    assert life.turn_tokens == 0


def test_a_turn_may_be_taken_by_a_class_of_which_nothing_ever_waited() -> None:
    scene = Scene()
    scene.wait(scene.life(10, service_class="bulk"))
    life = scene.life(12)
    line = scene.queue.serve(life, 3.0)
    assert line_sums(line) == (0, 0, 0, 0.0)
    assert (line.is_marked, scene.queue.asks.paused) == (False, {})
    assert scene.queue.classes["interactive"].share == 4.0
    scene.wait(scene.life(12))
    assert [line.flow[0] for line in scene.queue.in_turn()] == ["bulk", "interactive"]
