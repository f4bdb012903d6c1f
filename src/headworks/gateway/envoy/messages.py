"""Envoy's messages, as far as they are used here: those of its `ext_proc` and `ratelimit` services, version 3."""

from __future__ import annotations

from headworks.gateway.envoy.protos import STRUCT, UINT64, made

_HEADERS = {
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "HeaderMap": (("headers", 1, "HeaderValue[]"),),
}
_PROCESSING = made(
    "envoy.service.ext_proc.v3",
    {
        **_HEADERS,
        "ProcessingRequest": (
            ("request_headers", 2, "HttpHeaders"),
            ("response_headers", 3, "HttpHeaders"),
            ("request_body", 4, "HttpBody"),
            ("response_body", 5, "HttpBody"),
            ("request_trailers", 6, "HttpTrailers"),
            ("response_trailers", 7, "HttpTrailers"),
            ("metadata_context", 8, "Metadata"),
            ("observability_mode", 10, "bool"),
            ("protocol_config", 11, "ProtocolConfiguration"),
        ),
        "HttpHeaders": (("headers", 1, "HeaderMap"), ("end_of_stream", 3, "bool")),
        "HttpBody": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
        "HttpTrailers": (("trailers", 1, "HeaderMap"),),
        "Metadata": (("filter_metadata", 1, f"{STRUCT}{{}}"),),
        "ProtocolConfiguration": (("request_body_mode", 1, "enum"), ("response_body_mode", 2, "enum")),
        "ProcessingResponse": (
            ("request_headers", 1, "HeadersResponse"),
            ("response_headers", 2, "HeadersResponse"),
            ("request_body", 3, "BodyResponse"),
            ("response_body", 4, "BodyResponse"),
            ("request_trailers", 5, "TrailersResponse"),
            ("response_trailers", 6, "TrailersResponse"),
            ("immediate_response", 7, "ImmediateResponse"),
            ("dynamic_metadata", 8, STRUCT),
        ),
        "HeadersResponse": (("response", 1, "CommonResponse"),),
        "BodyResponse": (("response", 1, "CommonResponse"),),
        "TrailersResponse": (("header_mutation", 1, "HeaderMutation"),),
        "CommonResponse": (
            ("header_mutation", 2, "HeaderMutation"),
            ("body_mutation", 3, "BodyMutation"),
            ("clear_route_cache", 5, "bool"),
        ),
        "HeaderMutation": (("set_headers", 1, "HeaderValueOption[]"), ("remove_headers", 2, "string[]")),
        "HeaderValueOption": (("header", 1, "HeaderValue"), ("append_action", 3, "enum")),
        "BodyMutation": (("streamed_response", 3, "StreamedBodyResponse"),),
        "StreamedBodyResponse": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
        "ImmediateResponse": (
            ("status", 1, "HttpStatus"),
            ("headers", 2, "HeaderMutation"),
            ("body", 3, "bytes"),
            ("details", 5, "string"),
        ),
        "HttpStatus": (("code", 1, "enum"),),
    },
    {
        "ProcessingRequest": (
            "request",
            (
                *("request_headers", "request_body", "request_trailers"),
                *("response_headers", "response_body", "response_trailers"),
            ),
        ),
        "ProcessingResponse": (
            "response",
            (
                *("request_headers", "request_body", "request_trailers"),
                *("response_headers", "response_body", "response_trailers"),
                "immediate_response",
            ),
        ),
        "BodyMutation": ("mutation", ("streamed_response",)),
    },
)
_LIMITS = made(
    "envoy.service.ratelimit.v3",
    {
        **_HEADERS,
        "RateLimitRequest": (
            ("domain", 1, "string"),
            ("descriptors", 2, "RateLimitDescriptor[]"),
            ("hits_addend", 3, "uint32"),
        ),
        "RateLimitDescriptor": (("entries", 1, "Entry[]"), ("hits_addend", 3, UINT64)),
        "Entry": (("key", 1, "string"), ("value", 2, "string")),
        "RateLimitResponse": (
            ("overall_code", 1, "enum"),
            ("statuses", 2, "DescriptorStatus[]"),
            ("response_headers_to_add", 3, "HeaderValue[]"),
            ("raw_body", 5, "bytes"),
        ),
        "DescriptorStatus": (("code", 1, "enum"),),
    },
)
ProcessingRequest, ProcessingResponse = _PROCESSING["ProcessingRequest"], _PROCESSING["ProcessingResponse"]
HeadersResponse, BodyResponse = _PROCESSING["HeadersResponse"], _PROCESSING["BodyResponse"]
TrailersResponse, CommonResponse = _PROCESSING["TrailersResponse"], _PROCESSING["CommonResponse"]
HeaderMutation, HeaderValueOption = _PROCESSING["HeaderMutation"], _PROCESSING["HeaderValueOption"]
HeaderValue, HttpStatus = _PROCESSING["HeaderValue"], _PROCESSING["HttpStatus"]
BodyMutation, StreamedBodyResponse = _PROCESSING["BodyMutation"], _PROCESSING["StreamedBodyResponse"]
ImmediateResponse = _PROCESSING["ImmediateResponse"]
OVERWRITE_IF_EXISTS_OR_ADD = 2
"""`HeaderValueOption.HeaderAppendAction`."""
RateLimitRequest, RateLimitResponse = _LIMITS["RateLimitRequest"], _LIMITS["RateLimitResponse"]
DescriptorStatus, AddedHeader = _LIMITS["DescriptorStatus"], _LIMITS["HeaderValue"]
OK, OVER_LIMIT = 1, 2
"""`RateLimitResponse.Code`."""
