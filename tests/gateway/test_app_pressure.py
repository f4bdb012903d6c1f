"""Pressure over HTTP: an exporter's word, the class that gives way first, a class's gate, and the gauges (B4, B9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from app_scene import LOOPS, PATIENT, chat, run, scene

both_loops = pytest.mark.parametrize("loop", LOOPS)


class Accelerator:
    """An exporter whose value a test sets."""

    def __init__(self) -> None:
        self.percent = 10.0
        self.url = ""


@contextlib.asynccontextmanager
async def accelerator() -> AsyncIterator[Accelerator]:
    shown = Accelerator()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} %d\n' % shown.percent
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        writer.close()

    server = await asyncio.start_server(script, "127.0.0.1", 0)
    async with server:
        shown.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
        yield shown


@both_loops
def test_B4_an_exporter_holds_bulk_back_and_closes_a_gate_and_both_say_who_told(loop: str) -> None:
    async def steps() -> None:
        async with accelerator() as shown:
            shown.percent = 92.0
            classes = {
                "interactive": {**PATIENT["interactive"], "floor_ratio": 0.2},
                "batch": {"refuse_when": {"compute_ratio": 0.9}},
                "bulk": {"floor_ratio": 0.0, "queue": {"wait_s_max": 0.3}},
            }
            tenants = {"acme": {"keys": ["env:ACME_KEY"]}}
            async with scene(replica={"compute_url": shown.url}, classes=classes, tenants=tenants) as s:
                pool = "llama"
                await s.until(lambda: s.app.snapshot()["pools"][pool]["pressure"]["compute_source"] == "exporter")
                assert s.app.snapshot()["pools"][pool]["pressure"]["compute_ratio"] == pytest.approx(0.92)
                key = "Authorization: Bearer acme-key-of-the-test"
                assert (await s.ask(chat(key, "Headworks-Class: interactive"))).status == 200
                gate = await s.ask(chat(key, "Headworks-Class: batch"))
                assert (gate.status, gate.json()["error"]["code"]) == (429, "class_gate")
                assert gate.json()["error"]["message"] == (
                    "This class is refused above 0.9 compute ratio by exporter; it is 0.92 now."
                )
                held = await s.ask(chat(key, "Headworks-Class: bulk"))
                assert (held.status, held.json()["error"]["code"]) == (429, "compute_saturation")
                assert held.json()["error"]["message"] == "The engine's compute is 0.92 used; new work waits below 0.85."
                units = {one["unit"] for one in held.json()["headworks"]["verdicts"] if not one["passed"]}
                assert "compute_ratio under pressure by exporter" in units
                text = (await s.admin("/metrics")).text
                assert 'headworks_replica_compute_used_ratio{replica="llama/0"} 0.92' in text
                assert 'headworks_scale_wanted_ratio{pool="llama"} 1.15' in text
                assert 'headworks_demanded_tokens{pool="llama"}' in text
                shown.percent = 20.0
                await s.until(lambda: s.app.snapshot()["pools"][pool]["pressure"]["compute_ratio"] == pytest.approx(0.2))
                assert (await s.ask(chat(key, "Headworks-Class: bulk"))).status == 200

    run(loop, steps())


def test_B4_an_exporter_that_does_not_answer_costs_nothing_but_its_word() -> None:
    async def steps() -> None:
        async with scene(replica={"compute_url": "http://127.0.0.1:9/metrics"}) as s:
            assert (await s.ask(chat())).status == 200
            seen = s.app.snapshot()["pools"]["llama"]["pressure"]
            assert (seen["compute_ratio"], seen["compute_source"]) == (None, "unknown")

    run("asyncio", steps())
