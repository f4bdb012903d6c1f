"""What an endpoint picker says to Envoy, in Envoy's messages: with `picker.py` the only place that knows them.

Field by field `envoy.service.ext_proc.v3`, and for the pick the Gateway API's endpoint-picker protocol 1.0: the header and, in
the metadata namespace `envoy.lb`, the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headworks.gateway.envoy.messages import (
    OVERWRITE_IF_EXISTS_OR_ADD,
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)

Message = Any
"""Of protobuf, whose classes are made at run time."""
Fields = list[tuple[bytes, bytes]]
DESTINATION = "x-gateway-destination-endpoint"
SUBSET_SPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
LB_SPACE = "envoy.lb"
PIECE_BYTES_MAX = 61_440
"""Of a body in one message: Envoy buffers 64 KiB of a stream before it holds the sender up."""
FULL_DUPLEX_STREAMED = 4


def fields_of(headers: Message) -> Fields:
    """The fields of a head, as Envoy has them: names in lower case, pseudo headers among them."""
    return [(one.key.encode(), one.raw_value or one.value.encode()) for one in headers.headers.headers]


def subset_of(request: Message) -> frozenset[str] | None:
    """The endpoints that a gateway allows; None: all."""
    space = request.metadata_context.filter_metadata.get(SUBSET_SPACE)
    hint = space.fields.get(SUBSET) if space is not None else None
    if hint is None:
        return None
    listed = [one.string_value for one in hint.list_value.values] or hint.string_value.split(",")
    return frozenset(one.strip() for one in listed if one.strip())


def streams_both_ways(request: Message) -> bool:
    """Whether the filter that asks is set up as the endpoint-picker protocol has it."""
    modes = request.protocol_config
    return modes.request_body_mode == modes.response_body_mode == FULL_DUPLEX_STREAMED and not request.observability_mode


def picked(endpoint: str, fields: Fields, removed: Iterable[bytes]) -> Message:
    """Send it there, with this head."""
    mutation = _mutation([(DESTINATION.encode(), endpoint.encode()), *fields], removed)
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    picked = ProcessingResponse(request_headers=HeadersResponse(response=common))
    picked.dynamic_metadata.get_or_create_struct(LB_SPACE)[DESTINATION] = endpoint
    return picked


def request_body(body: bytes, has_trailers: bool) -> Iterator[Message]:
    """The body it is sent with, and its end."""
    for piece in _pieces(body, not has_trailers):
        yield ProcessingResponse(request_body=piece)
    if has_trailers:
        yield ProcessingResponse(request_trailers=TrailersResponse())


def answer_head(fields: Fields, removed: Iterable[bytes]) -> Message:
    """The head that a client gets in place of the engine's."""
    common = CommonResponse(header_mutation=_mutation(fields, removed))
    return ProcessingResponse(response_headers=HeadersResponse(response=common))


def answer_body(payload: bytes, is_last: bool, has_trailers: bool) -> Iterator[Message]:
    """Some of what a client gets."""
    if payload or not has_trailers:
        for piece in _pieces(payload, is_last and not has_trailers):
            yield ProcessingResponse(response_body=piece)
    if is_last and has_trailers:
        yield ProcessingResponse(response_trailers=TrailersResponse())


def answered(status: int, fields: Fields, body: bytes) -> Message:
    """A whole answer, and no engine is asked."""
    whole = ImmediateResponse(status=HttpStatus(code=status), headers=_mutation(fields, ()), body=body, details="headworks")
    return ProcessingResponse(immediate_response=whole)


def _pieces(payload: bytes, is_last: bool) -> Iterator[Message]:
    """In messages of a size that Envoy takes without holding anybody up."""
    for start in range(0, max(1, len(payload)), PIECE_BYTES_MAX):
        ends = is_last and start + PIECE_BYTES_MAX >= len(payload)
        streamed = StreamedBodyResponse(body=payload[start : start + PIECE_BYTES_MAX], end_of_stream=ends)
        yield BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))


def _mutation(fields: Fields, removed: Iterable[bytes]) -> Message:
    options = [
        HeaderValueOption(
            header=HeaderValue(key=name.decode("latin-1"), raw_value=value), append_action=OVERWRITE_IF_EXISTS_OR_ADD
        )
        for name, value in fields
    ]
    return HeaderMutation(set_headers=options, remove_headers=[name.decode("latin-1") for name in removed])
