"""What Envoy's filter and a Gateway API gateway may say to the endpoint picker, said by a gRPC client of our own (H5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from app_scene import LOOPS, PATIENT, Scene, run, scene
from tls_files import made, needs_openssl

from headworks.gateway.envoy import health, picker
from headworks.gateway.envoy import messages as pb

FULL_DUPLEX = {"request_body_mode": 4, "response_body_mode": 4}
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"one two three"}],"max_tokens":5}'
HEAD = {":method": "POST", ":path": "/v1/chat/completions", ":authority": "edge", "content-type": "application/json"}


@contextlib.asynccontextmanager
async def asked(**sections: Any) -> AsyncIterator[tuple[Scene, Any]]:
    """A gateway, and one stream of the protocol."""
    server = {"grpc": "127.0.0.1:0", **sections.pop("server", {})}
    async with scene(server=server, ledger={"lease_s": 1}, classes=PATIENT, **sections) as s:
        assert s.app.grpc is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{s.app.grpc.number}") as channel:
            process = channel.stream_stream(
                f"/{picker.NAME}/Process",
                request_serializer=pb.ProcessingRequest.SerializeToString,
                response_deserializer=pb.ProcessingResponse.FromString,
            )
            stream = process(timeout=20)
            yield s, stream
            stream.cancel()


def head(fields: dict[str, str], *, subset: list[str] | None = None, **more: Any) -> Any:
    """The first message of a request."""
    request = pb.ProcessingRequest(protocol_config={**FULL_DUPLEX, **more})
    for name, value in fields.items():
        request.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    if subset is not None:
        hint = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.get_or_create_list("x-gateway-destination-endpoint-subset").extend(subset)
    return request


def body(payload: bytes, is_last: bool = True) -> Any:
    return pb.ProcessingRequest(request_body={"body": payload, "end_of_stream": is_last})


def refusal(response: Any) -> tuple[int, bytes]:
    immediate = response.immediate_response
    return immediate.status.code, immediate.body


@pytest.mark.parametrize("loop", LOOPS)
def test_H5_a_pick_is_said_in_a_header_and_in_metadata_as_the_protocol_has_it(loop: str) -> None:
    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head({**HEAD, "authorization": "Bearer of-the-client"}))
            await stream.write(body(BODY[:20], False))
            await stream.write(body(BODY[20:]))
            picked, sent = await stream.read(), await stream.read()
            endpoint = s.engines[0].url.removeprefix("http://")
            mutation = picked.request_headers.response.header_mutation
            fields = {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}
            assert fields["x-gateway-destination-endpoint"] == endpoint
            assert picked.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == endpoint
            assert list(mutation.remove_headers) == ["authorization"]
            piece = sent.request_body.response.body_mutation.streamed_response
            assert (fields["content-length"], piece.end_of_stream) == (str(len(piece.body)), True)
            assert b'"max_tokens":5' in piece.body
            (held,) = s.charged()
            assert fields["x-request-id"] == held.execution
            stream.cancel()
            await s.until(lambda: not s.charged(), 10.0)
            await s.until(lambda: bool(s.everything("outcome")))
            assert [one["evidence"] for one in s.everything("outcome")] == ["E3b"], "a stream that ends is no end of an answer"

    run(loop, steps())


@pytest.mark.parametrize(
    ("by_engine", "status", "proof"), [(True, 400, "E1"), (True, 501, "E1"), (False, 408, "E3b"), (False, 501, "E3b")]
)
def test_H5_an_error_is_proof_where_an_engine_gave_it_and_none_where_envoy_did(
    by_engine: bool, status: int, proof: str
) -> None:
    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head(HEAD))
            await stream.write(body(BODY))
            _, _ = await stream.read(), await stream.read()
            answer = pb.ProcessingRequest(response_headers={"end_of_stream": not by_engine})
            answer.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
            if by_engine:
                answer.response_headers.headers.headers.add(key="x-envoy-upstream-service-time", raw_value=b"3")
            await stream.write(answer)
            if by_engine:
                await stream.write(pb.ProcessingRequest(response_body={"body": b"{}", "end_of_stream": True}))
            said = await stream.read()
            if by_engine:
                fields = {
                    one.header.key: one.header.raw_value for one in said.response_headers.response.header_mutation.set_headers
                }
                assert fields[":status"] == str(status).encode()
            else:
                assert refusal(said)[0] == 502
            await s.until(lambda: not s.charged(), 10.0)
            await s.until(lambda: bool(s.everything("outcome")))
            assert [one["evidence"] for one in s.everything("outcome")] == [proof]

    run("uvloop", steps())


def test_H5_a_stream_that_ends_while_what_it_says_has_to_wait_is_seen_at_once() -> None:
    """A client that reads nothing has Envoy wait with the engine's answer; then it leaves, and Envoy ends its side."""

    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head(HEAD))
            await stream.write(body(BODY.replace(b'"max_tokens":5', b'"max_tokens":500,"stream":true')))
            _, _ = await stream.read(), await stream.read()
            answer = pb.ProcessingRequest(response_headers={})
            for name, value in ((":status", b"200"), ("content-type", b"text/event-stream")):
                answer.response_headers.headers.headers.add(key=name, raw_value=value)
            await stream.write(answer)
            assert s.app.grpc is not None
            (exchange,) = s.app.grpc.edge.exchanges
            said, event = exchange.carrier._said, {"choices": [{"index": 0, "delta": {"content": "x" * 16_000}}]}
            piece = b"data: " + json.dumps(event).encode() + b"\n\n"
            for _ in range(400):
                await stream.write(pb.ProcessingRequest(response_body={"body": piece, "end_of_stream": False}))
                await asyncio.sleep(0.002)
                if said.is_held:
                    break
            assert said.is_held
            await stream.write(pb.ProcessingRequest(response_body={"body": piece, "end_of_stream": False}))
            await stream.done_writing()
            await s.until(lambda: s.app.grpc is not None and not s.app.grpc.edge.exchanges)
            await s.until(lambda: not s.charged(), 10.0)

    run("uvloop", steps())


def test_H5_trailers_are_passed_on_and_end_the_body() -> None:
    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head(HEAD))
            await stream.write(body(BODY, False))
            await stream.write(pb.ProcessingRequest(request_trailers={}))
            _, sent, trailers = await stream.read(), await stream.read(), await stream.read()
            assert not sent.request_body.response.body_mutation.streamed_response.end_of_stream
            assert trailers.HasField("request_trailers")
            stream.cancel()
            await s.until(lambda: not s.charged(), 10.0)

    run("uvloop", steps())


def test_H5_outside_the_subset_that_a_gateway_allows_nothing_is_picked() -> None:
    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head(HEAD, subset=["192.0.2.9:8000"]))
            await stream.write(body(BODY))
            status, said = refusal(await stream.read())
            assert (status, b'"code":"no_replica"' in said) == (503, True)
            await s.until(lambda: not s.charged())
            (outcome,) = s.everything("outcome")
            assert outcome["evidence"] == "E0"

    run("uvloop", steps())


def test_H5_inside_the_subset_it_is_picked() -> None:
    async def steps() -> None:
        async with asked() as (s, stream):
            await stream.write(head(HEAD, subset=["192.0.2.9:8000", s.engines[0].url.removeprefix("http://")]))
            await stream.write(body(BODY))
            assert (await stream.read()).HasField("request_headers")
            stream.cancel()
            await s.until(lambda: not s.charged(), 10.0)

    run("uvloop", steps())


@pytest.mark.parametrize(
    ("fields", "modes", "said"),
    [
        (HEAD, {"response_body_mode": 0}, "FULL_DUPLEX_STREAMED"),
        ({**HEAD, "x-two": "lines\r\nAuthorization: Bearer stolen"}, {}, "the end of a line"),
    ],
)
def test_H5_a_filter_that_is_set_up_otherwise_is_told_so(fields: dict[str, str], modes: dict[str, int], said: str) -> None:
    async def steps() -> None:
        async with asked() as (_, stream):
            await stream.write(head(fields, **modes))
            with pytest.raises(grpc.aio.AioRpcError, match=said) as told:
                assert await stream.read() is not grpc.aio.EOF
                raise AssertionError("it was answered")
            assert told.value.code() == grpc.StatusCode.ABORTED

    run("uvloop", steps())


def test_H5_what_is_no_request_is_refused_by_the_edge() -> None:
    async def steps() -> None:
        async with asked() as (_, stream):
            await stream.write(head({**HEAD, ":path": "/v1/../secret"}))
            status, _ = refusal(await stream.read())
            assert status in (400, 404)

    run("uvloop", steps())


@pytest.mark.parametrize(("path", "expected"), [("/v1/models", 200), ("/v1/unknown", 404)])
def test_H5_a_head_request_is_answered_although_no_body_comes(path: str, expected: int) -> None:
    async def steps() -> None:
        async with asked() as (_, stream):
            request = head({":method": "HEAD", ":path": path, ":authority": "edge"})
            request.request_headers.end_of_stream = True
            await stream.write(request)
            status, said = refusal(await asyncio.wait_for(stream.read(), 5))
            assert (status, said) == (expected, b"")

    run("uvloop", steps())


@pytest.mark.parametrize(("name", "draining"), [("", 2), ("readiness", 2), (picker.NAME, 2), ("liveness", 1)])
def test_H5_health_says_what_livez_and_readyz_say(name: str, draining: int) -> None:
    async def steps() -> None:
        async with scene(server={"grpc": "127.0.0.1:0"}) as s:
            assert s.app.grpc is not None
            async with grpc.aio.insecure_channel(f"127.0.0.1:{s.app.grpc.number}") as channel:
                check = channel.unary_unary(
                    f"/{health.NAME}/Check",
                    request_serializer=health.Request.SerializeToString,
                    response_deserializer=health.Response.FromString,
                )
                assert (await check(health.Request(service=name))).status == 1
                s.app._draining = True
                assert (await check(health.Request(service=name))).status == draining
                with pytest.raises(grpc.aio.AioRpcError, match="no such service"):
                    await check(health.Request(service="another"))

    run("uvloop", steps())


@needs_openssl
def test_H1_the_grpc_port_has_the_certificate_of_the_others(tmp_path: Path) -> None:
    files = made(tmp_path)
    trust = grpc.ssl_channel_credentials(Path(files["cert"]).read_bytes())

    async def steps() -> None:
        async with scene(server={"grpc": "127.0.0.1:0", "tls": files}) as s:
            assert s.app.grpc is not None
            async with grpc.aio.secure_channel(f"localhost:{s.app.grpc.number}", trust) as channel:
                check = channel.unary_unary(
                    f"/{health.NAME}/Check",
                    request_serializer=health.Request.SerializeToString,
                    response_deserializer=health.Response.FromString,
                )
                assert (await check(health.Request())).status == 1

    run("uvloop", steps())
