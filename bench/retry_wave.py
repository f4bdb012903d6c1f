"""How a hundred unchanged OpenAI clients come back that were refused in the same instant (B15).

A fake engine serves `--rate` requests a second, one at a time. Some ordinary overload comes first, so that the gateway has
measured how fast its queue drains. Then `--clients` stock clients (`openai.AsyncOpenAI`, nothing set but its URL and key)
ask at once. What cannot be served in time is refused with a slot of its own; the clients obey the hint by themselves.

- *second wave*: returns of clients in the fullest second of the clock, by the decision log's `arrived_s` of every attempt
  that says it is a retry. Seconds are counted from the first attempt of the wave.
- *capacity*: the engine's own rate. The target is 1.2 times it: hints are schedules, so nothing may pile up.
- *served*: clients that got their whole answer in the end: all whose slots lie within the horizon of 60 s, as many as drain in
  that time at the rate that the gateway measured before. `--clients` beyond that is the surplus: it has to be told not to
  retry (`x-should-retry: false`).
- *settled*: from the wave to the last of it, at most twice the *ideal*, what the engine needs for those it can serve.

Gateway, engine and clients are the real ones and speak over sockets, all in one process whose time passes only while nobody has
anything to do (`headworks.testing.virtual_time`): what is shown is the schedule, on a machine that is never late. `--real`
gives each a process and the machine's clock: as far as that machine keeps up with so many clients that connect at once.
`--no-slots` is the negative control: hints are taken out of the answers on their way, and the clients' own back-off remains.

    python bench/retry_wave.py

Exit 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import ssl
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import openai

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.gateway import clock
from headworks.gateway.app import App
from headworks.logs import reading
from headworks.sim.presets import FixedRateSettings
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine
from headworks.testing.virtual_time import VirtualLoop
from servers import free_port, process

PEAK_RATIO_MAX = 1.2
HORIZON_S = 60.0
SETTLED_TIMES_MAX = 2.0
START_S_MAX = 20.0
WARM_S = 6.0
LOG_FLUSH_S = 1.5
MODEL = "tiny"
ASK: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "one two three"}],
    "max_tokens": 4,
    "stream": True,
}
KEY = f"hw-bench-{secrets.token_hex(16)}"
WAVE_KEY = f"hw-bench-{secrets.token_hex(16)}"
CONFIG = """\
server: {listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}", guard: {loop_lag_shed_bulk_s: 60, loop_lag_shed_s: 60}}
ledger: {url: "memory:"}
log: {decisions: "{folder}/decisions/"}
usage: {path: "{folder}/usage/"}
classes:
  interactive: {slo: {ttft_s: 1.0, e2e_s: null, tpot_s: null}, queue: {wait_s_max: 1.0}}
tenants:
  warm: {keys: ["env:HEADWORKS_WARM_KEY"], class: interactive}
  wave: {keys: ["env:HEADWORKS_WAVE_KEY"], class: interactive, client_rate: {retry_ratio: 0.0}}
pools:
  engine:
    models: ["tiny"]
    replicas: [{url: "{engine}", engine: vllm}]
    active_requests_max: 1
    discipline: predictive_ttft
"""
"""The wave has no retry budget at all: what keeps its slot does not need one. And the gateway does not shed for its own sake:
it shares a machine with all those clients here, and what is measured is the schedule."""


ENVIRONMENT = {"HEADWORKS_WARM_KEY": KEY, "HEADWORKS_WAVE_KEY": WAVE_KEY}


def configuration(**places: str | int) -> str:
    text = CONFIG
    for name, value in places.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        if options.real:
            ends = asyncio.run(on_this_machine(options, folder))
        else:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                ends = runner.run(in_virtual_time(options, folder))
        return report(*records(Path(folder, "decisions")), ends, options)


async def in_virtual_time(options: argparse.Namespace, folder: str) -> list[str]:
    """All of it on this loop and by its clock, the gateway's included."""
    clock.now_s = asyncio.get_running_loop().time
    engine = FakeEngine(FakeSettings(engine=FixedRateSettings(rate_per_s=options.rate, servers=1)))
    text = configuration(engine=await engine.start(), port=0, admin=0, folder=folder)
    config = load_bytes(text.encode(), "retry_wave.yaml", ENVIRONMENT).config_or_raise()
    app = App(build.policy(config, number=1), build.settings(config, ENVIRONMENT))
    await app.start()
    try:
        while app.obstacles():  # noqa: ASYNC110 (looks at what others change, each in its time)
            await asyncio.sleep(0.1)
        host, port = app.address[:2]
        return await wave(f"http://{host}:{port}/v1", options)
    finally:
        await app.stop()
        await engine.stop()


async def on_this_machine(options: argparse.Namespace, folder: str) -> list[str]:
    engine_port, port, admin = free_port(), free_port(), free_port()
    engine, file = f"http://127.0.0.1:{engine_port}", Path(folder) / "headworks.yaml"
    file.write_text(configuration(engine=engine, port=port, admin=admin, folder=folder))
    fake = [sys.executable, "-m", "headworks.testing.fake_engine", "--port", str(engine_port), "--rate", str(options.rate)]
    serve = [str(Path(sys.executable).with_name("headworks")), "serve", "--config", str(file)]
    with (
        process(fake, f"{engine}/health", START_S_MAX),
        process(serve, f"http://127.0.0.1:{admin}/readyz", START_S_MAX, ENVIRONMENT),
    ):
        ends = await wave(f"http://127.0.0.1:{port}/v1", options)
        await asyncio.sleep(LOG_FLUSH_S)
        return ends


async def wave(url: str, options: argparse.Namespace) -> list[str]:
    """Overload for a while, silence, and then everybody at once. What TLS would need, which none uses here, is made once."""
    context = ssl.create_default_context()
    hooks = {"response": [without_slot]} if options.no_slots else {}
    clients = [
        openai.AsyncOpenAI(
            base_url=url, api_key=WAVE_KEY, http_client=openai.DefaultAsyncHttpxClient(verify=context, event_hooks=hooks)
        )
        for _ in range(options.clients)
    ]
    for client in clients:  # each asks its platform once, in a thread, which is to be no part of the wave
        await client.models.list()
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as warm:
        asks = []
        for _ in range(int(WARM_S * options.rate * PEAK_RATIO_MAX)):
            asks.append(asyncio.ensure_future(whole(warm)))
            await asyncio.sleep(1 / (options.rate * PEAK_RATIO_MAX))
        await asyncio.gather(*asks)
    ends = await asyncio.gather(*(whole(client) for client in clients))
    for client in clients:
        await client.close()
    return ends


async def without_slot(response: Any) -> None:
    for name in ("retry-after", "retry-after-ms", "x-should-retry"):
        response.headers.pop(name, None)


async def whole(client: openai.AsyncOpenAI) -> str:
    """One call as an application makes it: `served` if its stream came to its end, `sent away` if it was told not to retry."""
    try:
        stream = await client.chat.completions.create(**ASK)
        ends = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
    except openai.APIStatusError as error:
        return "sent away" if error.response.headers.get("x-should-retry") == "false" else f"refused {error.status_code}"
    except openai.APIError as error:
        return type(error).__name__
    return "served" if ends and ends[-1] is not None else "broken off"


def records(directory: Path) -> tuple[list[dict[str, Any]], float]:
    """What became of every attempt of the wave, and how many requests a second its first refusals were spread by."""
    lines = [line for path in sorted(directory.glob("*.jsonl")) for line in reading.lines(path)]
    wave = [(line["kind"], line["record"]) for line in lines if line["kind"] in ("decision", "outcome")]
    refused = [one for kind, one in wave if kind == "decision" and one["outcome"] == "refuse" and one["key"][0] == "wave"]
    rates = [one["forecast"]["drain_tokens_per_s"] / one["work"]["tokens"] for one in refused]
    return [one for kind, one in wave if kind == "outcome" and one["key"][0] == "wave"], median(rates)


def report(wave: list[dict[str, Any]], drain_per_s: float, ends: list[str], options: argparse.Namespace) -> dict[str, Any]:
    began_s = min(record["arrived_s"] for record in wave)
    returns = Counter(int(record["arrived_s"] - began_s) for record in wave if record["retry"])
    peak, came_to = max(returns.values(), default=0), Counter(ends)
    within = min(options.clients, int(HORIZON_S * drain_per_s))
    took_s, ideal_s = max(record["ended_s"] for record in wave) - began_s, within / options.rate
    return {
        "measured": time.strftime("%Y-%m-%d"),
        "clients": options.clients,
        "clock": "this machine's" if options.real else "virtual",
        "capacity_per_s": options.rate,
        "drain_per_s": round(drain_per_s, 1),
        "refused_first": sum(record["outcome"] == "refused" and not record["retry"] for record in wave),
        "returns": sum(returns.values()),
        "returns_per_s_max": peak,
        "kinds": dict(Counter(record["retry_kind"] for record in wave if record["retry"])),
        "came_to": dict(came_to),
        "settled_s": round(took_s, 1),
        "ideal_s": round(ideal_s, 1),
        "holds": {
            f"second wave at most {PEAK_RATIO_MAX:g} x capacity": peak <= PEAK_RATIO_MAX * options.rate,
            f"served all that {HORIZON_S:g} s hold, within a tenth": came_to["served"] >= 0.9 * within,
            "everybody else was told not to retry": came_to["served"] + came_to["sent away"] == options.clients,
            "settled within twice the ideal": took_s <= SETTLED_TIMES_MAX * ideal_s,
        },
    }


def page(found: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"{found['measured']}: {found['clients']} stock clients at once, {found['clock']} clock",
            f"capacity {found['capacity_per_s']:g} requests/s, measured drain {found['drain_per_s']:g}/s",
            f"refused at first {found['refused_first']}; returns {found['returns']}, {found['kinds']}",
            f"returns in the fullest second {found['returns_per_s_max']}; in the end {found['came_to']}",
            f"settled after {found['settled_s']} s, {found['ideal_s']} s ideal",
            *(f"{'holds ' if held else 'MISSED'}  {claim}" for claim, held in found["holds"].items()),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="how stock clients come back that were refused in the same instant")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second of the fake engine")
    parser.add_argument("--real", action="store_true", help="processes, by this machine's clock")
    parser.add_argument("--no-slots", action="store_true", help="the negative control: clients see no hints")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="50 clients")
    options = parser.parse_args()
    if options.quick:
        options.clients = 50
    found = measure(options)
    print(json.dumps(found, indent=1) if options.json else page(found))
    return 0 if all(found["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
