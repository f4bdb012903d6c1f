"""KEDA's external scaler in front of the gate (F4, H5), asked as KEDA asks: with the map of its metadata, and a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, first_event, run, scene
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headworks.gateway.envoy import scaler


@contextlib.asynccontextmanager
async def asking(**sections: Any) -> AsyncIterator[tuple[Scene, grpc.aio.Channel]]:
    async with scene(server={"grpc": "127.0.0.1:0"}, classes=PATIENT, **sections) as s:
        assert s.app.grpc is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{s.app.grpc.number}") as channel:
            yield s, channel


def scaled(**metadata: str) -> Any:
    entries = [{"key": key, "value": value} for key, value in metadata.items()]
    return scaler.ScaledObjectRef(name="llama", namespace="serving", scalerMetadata=entries)


async def call(channel: grpc.aio.Channel, method: str, request: Any, response: Any) -> Any:
    asked = channel.unary_unary(
        f"/{scaler.NAME}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )
    return await asked(request, timeout=10)


async def demanded(channel: grpc.aio.Channel, **metadata: str) -> float:
    request = scaler.GetMetricsRequest(scaledObjectRef=scaled(**metadata), metricName="headworks_demanded_tokens_llama")
    (value,) = (await call(channel, "GetMetrics", request, scaler.GetMetricsResponse)).metricValues
    assert value.metricName == "headworks_demanded_tokens_llama"
    assert value.metricValue >= value.metricValueFloat
    return float(value.metricValueFloat)


@pytest.mark.parametrize("loop", LOOPS)
def test_F4_keda_is_told_what_is_demanded_and_what_a_replica_should_carry(loop: str) -> None:
    async def steps() -> None:
        async with asking() as (s, channel):
            (spec,) = (await call(channel, "GetMetricSpec", scaled(), scaler.GetMetricSpecResponse)).metricSpecs
            limit = s.app.snapshot()["pools"]["llama"]["tokens_limit"]
            assert spec.targetSizeFloat == pytest.approx(0.8 * limit)
            stated = await call(channel, "GetMetricSpec", scaled(targetTokens="24000"), scaler.GetMetricSpecResponse)
            assert [one.targetSize for one in stated.metricSpecs] == [24_000]
            assert await demanded(channel) == 0
            await asyncio.sleep(scaler.FRESH_S)
            client = await s.connect()
            client.send(chat(tokens=500, stream=True))
            await first_event(client)
            s.engines[0].hang()  # what it holds stays as it is while we look
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["tokens"] == s.held("pool:llama"))
            assert await demanded(channel, pool="llama") == s.held("pool:llama") > 100
            s.engines[0].resume()
            client.close()

    run(loop, steps())


def test_F4_a_pool_that_is_asked_for_is_active_and_that_is_pushed_when_it_changes() -> None:
    async def steps() -> None:
        async with asking() as (s, channel):
            assert not (await call(channel, "IsActive", scaled(), scaler.IsActiveResponse)).result
            stream = channel.unary_stream(
                f"/{scaler.NAME}/StreamIsActive",
                request_serializer=scaler.ScaledObjectRef.SerializeToString,
                response_deserializer=scaler.IsActiveResponse.FromString,
            )(scaled(pool="llama"))
            assert not (await stream.read()).result
            client = await s.connect()
            client.send(chat(tokens=500, stream=True))
            assert (await asyncio.wait_for(stream.read(), 5)).result
            client.close()
            assert not (await asyncio.wait_for(stream.read(), 10)).result
            assert not (await call(channel, "IsActive", scaled(activeTokens="100000"), scaler.IsActiveResponse)).result
            stream.cancel()

    run("uvloop", steps())


def streams(channel: grpc.aio.Channel, count: int) -> list[Any]:
    method = channel.unary_stream(
        f"/{scaler.NAME}/StreamIsActive",
        request_serializer=scaler.ScaledObjectRef.SerializeToString,
        response_deserializer=scaler.IsActiveResponse.FromString,
    )
    return [method(scaled(pool="llama")) for _ in range(count)]


def test_F4_streams_share_one_look_and_are_bounded_and_who_leaves_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler, "STREAMS_MAX", 20)

    async def steps() -> None:
        looks = 0
        async with asking() as (s, channel):
            shown = s.app.snapshot

            def look() -> dict[str, Any]:
                nonlocal looks
                looks += 1
                return shown()

            s.app.snapshot = look  # type: ignore[method-assign]
            begun_s = asyncio.get_running_loop().time()
            opened = streams(channel, 20)
            assert [(await stream.read()).result for stream in opened] == [False] * 20
            (one_more,) = streams(channel, 1)
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await one_more.read()
            assert told.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await asyncio.sleep(1.0)
            took_s = asyncio.get_running_loop().time() - begun_s
            assert 1 <= looks <= took_s / scaler.LOOK_S + 1, "20 streams look four times a second each"
            opened[0].cancel()
            for _ in range(200):
                (again,) = streams(channel, 1)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert not (await again.read()).result
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("who left keeps its place")
            for stream in (*opened, again):
                stream.cancel()
            s.app.snapshot = shown  # type: ignore[method-assign]

    run("uvloop", steps())


def test_F4_a_request_that_no_engine_could_take_wakes_a_pool_from_nothing() -> None:
    async def steps() -> None:
        async with asking(pool={"models": ["tiny"]}) as (s, channel):
            s.engines[0].vanish()
            await s.until(lambda: bool(s.app.obstacles()))
            refused = await s.ask(chat(tokens=50))
            assert refused.status == 503
            for _ in range(200):
                if (await call(channel, "IsActive", scaled(), scaler.IsActiveResponse)).result:
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("nobody would ever start an engine for it")

    run("uvloop", steps())


@pytest.mark.parametrize("metadata", [{"pool": "nobodys"}, {"targetTokens": "many"}, {"targetTokens": "0"}])
def test_F4_metadata_that_says_nothing_is_told_so(metadata: dict[str, str]) -> None:
    async def steps() -> None:
        async with asking() as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError, match=f"metadata.{next(iter(metadata))}") as told:
                await call(channel, "GetMetricSpec", scaled(**metadata), scaler.GetMetricSpecResponse)
            assert told.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    run("uvloop", steps())


def test_F4_metadata_as_a_map_is_on_the_wire_what_is_read_here() -> None:
    """KEDA's file says `map<string, string>`; here it is a list of entries."""
    file = FileDescriptorProto(name="keda.proto", package="keda", syntax="proto3")
    message = file.message_type.add(name="ScaledObjectRef")
    entry = DescriptorProto(name="ScalerMetadataEntry", options={"map_entry": True})
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=FieldDescriptorProto.TYPE_STRING, label=1)
    message.nested_type.append(entry)
    message.field.add(
        name="scalerMetadata",
        number=3,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".keda.ScaledObjectRef.ScalerMetadataEntry",
        label=3,
    )
    pool = DescriptorPool()
    pool.Add(file)
    kedas = GetMessageClass(pool.FindMessageTypeByName("keda.ScaledObjectRef"))
    sent = kedas(scalerMetadata={"pool": "llama", "targetTokens": "24000"}).SerializeToString()
    assert scaler._metadata(scaler.ScaledObjectRef.FromString(sent)) == {"pool": "llama", "targetTokens": "24000"}
