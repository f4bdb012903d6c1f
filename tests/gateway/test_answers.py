"""Kept answers: what is kept, for how long, and in how much memory (A6)."""

from __future__ import annotations

from relay_scene import IDS, JSON, SSE, FakeClient, FakeUpstream

from headworks.gateway.answers import ENTRY_BYTES, Answers
from headworks.gateway.audience import Audience
from headworks.gateway.every_answer import Headers, own_headers


class Kept:
    """Answers with a clock that a test sets."""

    def __init__(self, *, bytes_max: int = 1_000, total_bytes_max: int = 100_000, remember_s: float = 60.0) -> None:
        self.now_s = 100.0
        self.answers = Answers(
            bytes_max=bytes_max,
            total_bytes_max=total_bytes_max,
            remember_s=remember_s,
            clock_s=lambda: self.now_s,
            wall_s=lambda: 0.0,
        )

    def streams(self, execution: str, *pieces: bytes, completed: bool | None = True) -> Audience:
        """One execution that is sent and answered; `completed` None: it still runs."""
        audience = self.answers.open(execution)
        audience.start(200, SSE)
        for piece in pieces:
            audience.send(None, piece)
        if completed is not None:
            if completed:
                audience.finish()
            self.answers.over(execution, completed)
        return audience

    def body(self, execution: str) -> bytes | None:
        """What a client that comes now gets."""
        audience, client = self.answers.find(execution), FakeClient(True)
        if audience is None or not audience.join(client, IDS, own_headers(IDS, 0.0), lambda: None):
            return None
        return client.body


def test_A6_a_whole_answer_is_kept_and_given_again() -> None:
    kept = Kept()
    kept.streams("x", b"one ", b"two")
    assert kept.body("x") == kept.body("x") == b"one two"
    assert kept.answers.total_bytes == ENTRY_BYTES + 7
    whole = kept.answers.open("y")
    whole.respond(200, JSON, b"{}")
    kept.answers.over("y", True)
    assert kept.body("y") == b"{}"


def test_A6_an_answer_on_its_way_can_be_joined() -> None:
    kept = Kept()
    audience, early = kept.answers.open("x"), FakeClient(True)
    assert audience.join(early, IDS, own_headers(IDS, 0.0), lambda: None)
    audience.start(200, SSE)
    audience.send(None, b"one ")
    late = FakeClient(True)
    assert kept.answers.find("x") is audience
    assert audience.join(late, IDS, own_headers(IDS, 0.0), lambda: None)
    audience.send(None, b"two")
    audience.finish()
    assert early.body == late.body == b"one two"


def test_A6_an_answer_longer_than_its_bound_is_not_kept_and_cannot_be_joined() -> None:
    kept = Kept(bytes_max=10)
    kept.streams("x", b"12345", b"67890", completed=None)
    assert kept.body("x") == b"1234567890"
    kept.answers.find("x").send(None, b"!")  # type: ignore[union-attr]
    assert kept.body("x") is None
    assert kept.answers.total_bytes == ENTRY_BYTES
    kept.answers.over("x", True)
    assert (kept.answers.find("x"), kept.answers.total_bytes) == (None, 0)


def test_A6_the_oldest_whole_answer_goes_when_memory_is_short() -> None:
    kept = Kept(total_bytes_max=3 * (ENTRY_BYTES + 100))
    for number in range(4):
        kept.streams(f"x{number}", bytes(100))
    assert [kept.body(f"x{number}") is not None for number in range(4)] == [False, True, True, True]
    assert kept.answers.total_bytes == 3 * (ENTRY_BYTES + 100)


def test_A6_running_answers_that_fill_the_memory_lose_what_they_kept_and_go_on() -> None:
    kept = Kept(total_bytes_max=2 * ENTRY_BYTES + 100)
    first = kept.streams("x0", bytes(100), completed=None)
    second = kept.streams("x1", bytes(1), completed=None)
    assert (kept.body("x0"), kept.body("x1")) == (bytes(100), None)
    for audience, name in ((first, "x0"), (second, "x1")):
        audience.finish()
        kept.answers.over(name, True)
    assert (kept.body("x0"), kept.body("x1"), kept.answers.total_bytes) == (bytes(100), None, ENTRY_BYTES + 100)


def test_A6_what_did_not_complete_is_not_kept() -> None:
    kept = Kept()
    kept.streams("cancelled", b"half", completed=False)
    broken = kept.streams("broken", b"half", completed=None)
    broken.fail("upstream_lost")
    kept.answers.over("broken", False)
    refused = kept.answers.open("refused")
    refused.respond(400, JSON, b"{}")
    kept.answers.over("refused", False)
    assert [kept.answers.find(name) for name in ("cancelled", "broken", "refused")] == [None, None, None]
    assert kept.answers.total_bytes == 0


def test_A6_an_answer_is_kept_for_its_time() -> None:
    kept = Kept(remember_s=60.0)
    kept.streams("x", b"one")
    kept.now_s += 60.0
    assert kept.body("x") == b"one"
    kept.now_s += 0.1
    assert (kept.body("x"), kept.answers.total_bytes) == (None, 0)


def test_K02_a_second_attempt_writes_to_the_same_clients() -> None:
    kept = Kept()
    audience, client = kept.answers.open("x"), FakeClient(True)
    audience.join(client, IDS, own_headers(IDS, 0.0), lambda: None)
    kept.answers.over("x", False)
    kept.answers.send_on("y", audience)
    audience.start(200, SSE)
    audience.send(None, b"one")
    audience.finish()
    kept.answers.over("y", True)
    assert client.body == kept.body("y") == b"one"
    assert kept.body("x") is None


class TooSlow(FakeClient):
    """Is cut off in the middle of the second thing it is sent, as one that has too much unread is."""

    def write(self, payload: bytes) -> None:
        super().write(payload)
        if self.body.count(b"|") == 2:
            self.leave()


def test_A6_one_that_is_cut_off_costs_the_others_nothing() -> None:
    kept = Kept()
    audience, clients = kept.answers.open("x"), [FakeClient(True), TooSlow(True), FakeClient(True), FakeClient(True)]
    for client in clients:
        audience.join(client, IDS, own_headers(IDS, 0.0), lambda: None)
    audience.start(200, SSE)
    for piece in (b"one|", b"two|", b"three|"):
        audience.send(None, piece)
    assert [client.body for client in clients] == [b"one|two|three|", b"one|two|", b"one|two|three|", b"one|two|three|"]


class GoesAtOnce(FakeClient):
    """Is gone in the middle of the head it is sent."""

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        super().start(status, headers, length)
        self.leave()


def test_A6_one_that_goes_at_the_head_costs_the_others_nothing() -> None:
    audience, clients = Kept().answers.open("x"), [FakeClient(True), GoesAtOnce(True), FakeClient(True), FakeClient(True)]
    for client in clients:
        audience.join(client, IDS, own_headers(IDS, 0.0), lambda: None)
    audience.start(200, SSE)
    audience.send(None, b"one")
    assert [(client.status, client.body) for client in clients] == [(200, b"one"), (200, b""), (200, b"one"), (200, b"one")]


def test_A6_a_slow_one_that_leaves_takes_its_pause_with_it() -> None:
    audience, source = Kept().answers.open("x"), FakeUpstream()
    audience.fed_by(Paces(source))
    slow, other = FakeClient(True), FakeClient(True)
    for client in (slow, other):
        audience.join(client, IDS, own_headers(IDS, 0.0), lambda: None)
    audience.start(200, SSE)
    slow.pause()
    other.pause()
    other.resume()
    assert source.calls == ["pause"]
    slow.leave()
    assert source.calls == ["pause", "resume"]


class Paces:
    """A source that writes down what it is told."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.pause, self.resume = upstream.pause_reading, upstream.resume_reading
