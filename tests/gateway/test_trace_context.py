"""`traceparent` and `tracestate` as the W3C has them, read with care (F1)."""

from __future__ import annotations

import pytest

from headworks.gateway.trace_context import TraceContext, read

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = b"00f067aa0ba902b7"
GOOD = b"00-%b-%b-01" % (TRACE, SPAN)


def given(parent: bytes, state: bytes | None = None) -> TraceContext | None:
    return read({b"traceparent": parent} | ({} if state is None else {b"tracestate": state}))


def test_F1_a_context_is_read_and_written_as_it_came() -> None:
    found = given(GOOD, b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert found == TraceContext(TRACE, SPAN, 1, b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert found.is_sampled
    assert found.lines() == b"traceparent: " + GOOD + b"\r\ntracestate: congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\r\n"
    assert found.lines(b"b7ad6b7169203331").startswith(b"traceparent: 00-%b-b7ad6b7169203331-01\r\n" % TRACE)


def test_F1_one_that_is_not_sampled_stays_so() -> None:
    found = given(b"00-%b-%b-00" % (TRACE, SPAN))
    assert found is not None and not found.is_sampled
    assert found.lines() == b"traceparent: 00-%b-%b-00\r\n" % (TRACE, SPAN)


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"00",
        b"00-%b-%b" % (TRACE, SPAN),
        b"ff-%b-%b-01" % (TRACE, SPAN),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01" % (TRACE.upper(), SPAN),
        b"00-%b-%b-01" % (TRACE[:-1], SPAN),
        b"00-%b-%b-0g" % (TRACE, SPAN),
        GOOD + b"-more",
        GOOD + b"x",
        b"01-%b-%b-01more" % (TRACE, SPAN),
        b"0-%b-%b-01" % (TRACE, SPAN),
        b"00_%b_%b_01" % (TRACE, SPAN),
    ],
)
def test_F1_what_is_no_traceparent_is_none_and_takes_its_state_with_it(parent: bytes) -> None:
    assert given(parent, b"congo=t61rcWkgMzE") is None


def test_F1_there_may_be_none() -> None:
    assert read({b"tracestate": b"congo=t61rcWkgMzE"}) is None


@pytest.mark.parametrize("parent", [b"cc-%b-%b-01" % (TRACE, SPAN), b"cc-%b-%b-01-what-the-future-will-be" % (TRACE, SPAN)])
def test_F1_of_a_later_version_what_this_one_knows_is_read_and_written(parent: bytes) -> None:
    found = given(parent)
    assert found is not None and found.lines() == b"traceparent: " + GOOD + b"\r\n"


def test_F1_flags_that_this_version_does_not_know_are_not_passed_on() -> None:
    found = given(b"00-%b-%b-ff" % (TRACE, SPAN))
    assert found is not None and found.lines() == b"traceparent: " + GOOD + b"\r\n"


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (b"a=1", b"a=1"),
        (b" a=1 , b=2,, ", b"a=1,b=2"),
        (b"fw529a3039@dt=FfAfIDAwMDA", b"fw529a3039@dt=FfAfIDAwMDA"),
        (b"a=" + b"v" * 256, b"a=" + b"v" * 256),
        (b"a=" + b"v" * 257, b""),
        (b"A=1", b""),
        (b"a", b""),
        (b"a=1,a=2", b""),
        (b"a=1;b=2=3", b""),
        (b"a=\x01", b""),
        (b",".join(b"k%d=1" % number for number in range(33)), b""),
        (b"a=%b,b=%b" % (b"v" * 256, b"v" * 256), b""),
        (b"", b""),
    ],
)
def test_F1_a_state_is_passed_on_whole_or_not_at_all(state: bytes, kept: bytes) -> None:
    found = given(GOOD, state)
    assert found is not None
    assert found.state == kept
    assert found.lines().count(b"\r\n") == (2 if kept else 1)


def test_F1_no_line_can_be_put_into_a_request_by_a_header() -> None:
    found = given(GOOD, b"a=1\r\nX-Evil: 1")
    assert found is not None and found.state == b""
