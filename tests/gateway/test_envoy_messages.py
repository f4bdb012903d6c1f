"""The numbers of Envoy's fields, beside Envoy's own files where they are installed (`pip install xds-protos`, in an environment
without OpenTelemetry, whose files it replaces)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from headworks.gateway.envoy import messages

PROCESSING, LIMITS = "envoy.service.ext_proc.v3.external_processor_pb2", "envoy.service.ratelimit.v3.rls_pb2"


def same(ours: Any, theirs: Any, seen: set[str]) -> None:
    """Every field of ours is one of theirs, by name, number and place, all the way down."""
    if ours.full_name in seen:
        return
    seen.add(ours.full_name)
    for field in ours.fields:
        other = theirs.fields_by_name[field.name]
        choices = [one.containing_oneof and one.containing_oneof.name for one in (field, other)]
        where = f"{ours.full_name}.{field.name}"
        assert (field.number, field.is_repeated, choices[0]) == (other.number, other.is_repeated, choices[1]), where
        assert (field.message_type is None) == (other.message_type is None), where
        assert field.type == other.type or other.enum_type is not None, where
        if field.message_type is not None:
            same(field.message_type, other.message_type, seen)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (PROCESSING, "ProcessingRequest"),
        (PROCESSING, "ProcessingResponse"),
        (LIMITS, "RateLimitRequest"),
        (LIMITS, "RateLimitResponse"),
    ],
)
def test_H5_fields_are_numbered_as_in_envoys_own_files(module: str, name: str) -> None:
    pytest.importorskip(module)
    same(getattr(messages, name).DESCRIPTOR, getattr(import_module(module), name).DESCRIPTOR, set())


def test_H5_a_pick_on_the_wire() -> None:
    """Written out: field 2 (a head) of length 0, field 4 (a body) with one byte and its end."""
    assert messages.ProcessingRequest(request_headers={}).SerializeToString() == b"\x12\x00"
    body = messages.ProcessingRequest(request_body={"body": b"x", "end_of_stream": True})
    assert body.SerializeToString() == b"\x22\x05\x0a\x01x\x10\x01"
    assert messages.ProcessingRequest.FromString(b"\x12\x00").WhichOneof("request") == "request_headers"
    spoken = messages.RateLimitResponse(overall_code=messages.OVER_LIMIT, raw_body=b"no")
    assert spoken.SerializeToString() == b"\x08\x02\x2a\x02no"
