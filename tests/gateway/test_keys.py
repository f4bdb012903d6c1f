"""Who is asking (H2, K43), and how long they will wait (E3)."""

from __future__ import annotations

import hmac
import math

import pytest

from headworks.core.policy import ClassPolicy
from headworks.gateway.deadlines import Deadlines, stamp
from headworks.gateway.dialects.fields import Fault
from headworks.gateway.keys import ADDRESSES_MAX, Denied, Failures, Identity, Key, Keys

ACME = Identity("acme", "acme/1", ("infer",))
SECRET = "hw-0123456789abcdef"


def keys() -> Keys:
    return Keys(b"pepper", [Key(SECRET, ACME), Key("hw-other", Identity("batchco", "batchco/1"))])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_H2_a_key_names_its_tenant(scheme: str) -> None:
    assert keys().identify(f"{scheme} {SECRET}".encode(), "a", 0.0) == ACME


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic " + SECRET.encode(),
        b"Digest " + SECRET.encode(),
        SECRET.encode(),
        b"Bearer " + SECRET.encode()[:-1],
        b"Bearer " + SECRET.encode() + b"\0",
        b"Bearer ' OR 1=1 --",
        b"Bearer " + b"x" * 1_048_576,
        "Bearer ключ".encode(),
        b"Bearer \xff\xfe",
        b"Bearer " + hmac.digest(b"pepper", SECRET.encode(), "sha256").hex().encode(),
        b"Bearer " + hmac.digest(b"pepper", SECRET.encode(), "sha256"),
        b"Bearer " + bytes(32),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_H2_anything_else_is_nobody(authorization: bytes | None) -> None:
    assert keys().identify(authorization, "a", 0.0) == Denied("invalid_api_key")


def test_H2_no_secret_is_kept() -> None:
    one = keys()
    held = {name: getattr(one, name) for name in dir(one) if not name.startswith("__")}
    assert "_known" in held
    assert SECRET not in repr(held)


def test_H1_anonymous_mode_is_one_tenant_whatever_is_sent() -> None:
    anonymous = Identity("anonymous", "anonymous")
    everybody = Keys(b"pepper", [], anonymous)
    assert everybody.identify(None, "a", 0.0) == everybody.identify(b"Bearer x", "a", 0.0) == anonymous


def test_H2_failures_are_throttled_by_address_and_good_keys_pass() -> None:
    ring = keys()
    for _ in range(20):
        assert ring.identify(b"Bearer wrong", "a", 0.0) == Denied("invalid_api_key")
    assert ring.identify(b"Bearer wrong", "a", 0.0) == Denied("rate_limit_exceeded", 3.0)
    assert ring.identify(b"Bearer wrong", "b", 0.0) == Denied("invalid_api_key")
    assert ring.identify(f"Bearer {SECRET}".encode(), "a", 0.0) == ACME
    assert ring.identify(b"Bearer wrong", "a", 3.0) == Denied("invalid_api_key")
    assert ring.identify(b"Bearer wrong", "a", 3.0) == Denied("rate_limit_exceeded", 3.0)


def test_H2_the_table_of_addresses_is_bounded() -> None:
    failures = Failures()
    for number in range(ADDRESSES_MAX + 100):
        failures.failed(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(failures) == ADDRESSES_MAX


# deadlines

CLASS = ClassPolicy("interactive", gateway_s=55.0)


@pytest.mark.parametrize(
    ("headers", "stream", "start_by_s", "finish_by_s"),
    [
        ({}, True, math.inf, 155.0),
        ({b"headworks-deadline": b"2.5"}, True, 102.5, 102.5),
        ({b"headworks-deadline": b"900"}, True, 1000.0, 155.0),
        ({b"x-stainless-read-timeout": b"600"}, True, 700.0, 155.0),
        ({b"x-stainless-read-timeout": b"10.0"}, True, 110.0, 155.0),
        ({b"x-stainless-read-timeout": b"10.0"}, False, 110.0, 110.0),
        ({b"x-stainless-read-timeout": b"inf"}, False, math.inf, 155.0),
        ({b"x-stainless-read-timeout": b"10", b"headworks-deadline": b"3"}, True, 103.0, 103.0),
        ({b"x-stainless-read-timeout": b"3", b"headworks-deadline": b"10"}, True, 103.0, 110.0),
    ],
)
def test_E3_the_shortest_patience_holds(
    headers: dict[bytes, bytes], stream: bool, start_by_s: float, finish_by_s: float
) -> None:
    assert stamp(headers, CLASS, stream, 100.0) == Deadlines(start_by_s, finish_by_s)


@pytest.mark.parametrize(
    "text", [b"", b"0", b"-1", b"1e3", b"inf", b"nan", b"1,5", b"0x10", b"+1", b"99999999", b"1_0", b"soon"]
)
def test_E3_a_deadline_is_decimal_seconds(text: bytes) -> None:
    fault = stamp({b"headworks-deadline": text}, CLASS, True, 100.0)
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.param) == ("invalid_request", "Headworks-Deadline")


@pytest.mark.parametrize("text", [b"", b"0", b"-5", b"nan", b"soon", b"-inf"])
def test_E3_a_bad_read_timeout_is_refused(text: bytes) -> None:
    fault = stamp({b"x-stainless-read-timeout": text}, CLASS, True, 100.0)
    assert isinstance(fault, Fault)
    assert fault.param == "x-stainless-read-timeout"
