"""Answers that are kept for equal requests: what is kept, for how long, and in how much memory (E5)."""

from __future__ import annotations

from headworks.core.policy import ClassPolicy, StepPolicy
from headworks.gateway.audience import Audience
from headworks.gateway.dialects import chat
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.equals import ENTRY_BYTES, Equals

CACHED = ClassPolicy("interactive", on_pressure=(StepPolicy("cached"),))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def answered(equals: Equals, name: str, body: bytes) -> Audience:
    audience = equals.open(lambda: 0.0)
    audience.respond(200, (), body)
    equals.over(("acme", name), audience, True)
    return audience


def parsed(body: bytes) -> Parsed:
    found = chat.parse(body, Limits())
    assert isinstance(found, Parsed)
    return found


def test_E5_equal_is_the_same_tenant_and_every_parameter_that_matters_however_it_is_written() -> None:
    equals = Equals(1_000, 10_000, 60.0, Clock())
    base = parsed(b'{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0}')
    other = parsed(b'{ "temperature": 0, "messages": [{"content": "a", "role": "user"}], "model": "m", "user": "u" }')
    warmer = parsed(b'{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":1}')
    assert equals.name("acme", base, CACHED) == equals.name("acme", other, CACHED)
    assert equals.name("acme", base, CACHED) != equals.name("acme", warmer, CACHED)
    assert equals.name("acme", base, CACHED) != equals.name("batchco", base, CACHED)
    assert equals.name("acme", base, ClassPolicy("interactive", on_pressure=(StepPolicy("drop_n"),))) is None
    assert Equals(0, 10_000, 60.0, Clock()).name("acme", base, CACHED) is None, "replay_bytes_max: 0 keeps nothing"


def test_E5_an_answer_is_kept_for_its_time() -> None:
    clock = Clock()
    equals = Equals(1_000, 10_000, 60.0, clock)
    kept = answered(equals, "a", b"x" * 100)
    assert equals.find(("acme", "a")) is kept
    clock.now_s += 60.1
    assert equals.find(("acme", "a")) is None
    assert equals.total_bytes == 0


def test_E5_what_was_not_asked_for_the_longest_makes_room() -> None:
    equals = Equals(1_000, 3 * (ENTRY_BYTES + 100), 60.0, Clock())
    for name in "abc":
        answered(equals, name, b"x" * 100)
    assert equals.find(("acme", "a")) is not None
    answered(equals, "d", b"x" * 100)
    assert [equals.find(("acme", name)) is not None for name in "abcd"] == [True, False, True, True]
    assert equals.total_bytes == 3 * (ENTRY_BYTES + 100)


def test_E5_what_is_too_large_or_not_whole_is_not_kept_and_holds_no_memory() -> None:
    equals = Equals(50, 10_000, 60.0, Clock())
    answered(equals, "large", b"x" * 51)
    broken = equals.open(lambda: 0.0)
    broken.start(200, ())
    broken.send(None, b"x" * 20)
    equals.over(("acme", "broken"), broken, False)
    assert (equals.find(("acme", "large")), equals.find(("acme", "broken")), equals.total_bytes) == (None, None, 0)


def test_E5_the_newer_of_two_equal_answers_stays() -> None:
    equals = Equals(1_000, 10_000, 60.0, Clock())
    answered(equals, "a", b"x" * 10)
    newer = answered(equals, "a", b"y" * 20)
    assert equals.find(("acme", "a")) is newer
    assert equals.total_bytes == ENTRY_BYTES + 20
