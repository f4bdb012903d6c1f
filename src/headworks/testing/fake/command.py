"""The fake engine as a process of its own. Flags that the real engine has carry its names."""

from __future__ import annotations

import argparse
import asyncio
import signal
from dataclasses import replace

from headworks.sim.presets import PRESETS, BatchingSettings, FixedRateSettings
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine


def main() -> None:
    """Prints one line when it listens; ends on SIGTERM, SIGINT or `/fake/die`."""
    asyncio.run(_serve(settings_of(parser().parse_args())))


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="fake_engine", description="An engine model behind vLLM's HTTP surface.")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, default=0, help="0: any free one")
    flags.add_argument("--preset", choices=sorted(PRESETS), default="vllm_cpu_tiny")
    flags.add_argument("--rate", type=float, help="instead of a preset: a server of so many requests a second")
    flags.add_argument("--servers", type=int, default=1, help="with --rate: how many it serves at once")
    flags.add_argument("--speed", type=float, default=1.0, help="model seconds per real second")
    flags.add_argument("--served-model-name", default="tiny")
    flags.add_argument("--max-model-len", type=int, default=4096)
    flags.add_argument("--max-num-seqs", type=int)
    flags.add_argument("--max-num-batched-tokens", type=int)
    flags.add_argument("--max-num-queued-reqs", type=int)
    flags.add_argument("--num-gpu-blocks-override", type=int)
    flags.add_argument("--block-size", type=int)
    flags.add_argument("--stream-interval", type=int, default=1, help="tokens per chunk")
    flags.add_argument("--abort-lag-steps", type=int, default=2, help="whole steps an abort comes late")
    flags.add_argument("--natural-tokens", type=int, help="answers end by themselves after so many tokens")
    flags.add_argument("--ignore-abort", action="store_true", help="a client that leaves is not noticed")
    flags.add_argument("--close-but-run", action="store_true", help="close towards a client that leaves, and run on")
    flags.add_argument("--developer-routes", action="store_true", help="adds /abort_requests")
    return flags


def settings_of(given: argparse.Namespace) -> FakeSettings:
    """The flags as settings."""
    return FakeSettings(
        engine=_fixed(given) if given.rate else _batching(given),
        model_name=given.served_model_name,
        context_tokens=given.max_model_len,
        speed=given.speed,
        host=given.host,
        port=given.port,
        natural_tokens=given.natural_tokens,
        ignore_abort=given.ignore_abort,
        close_but_run=given.close_but_run,
        developer_routes=given.developer_routes,
    )


def _fixed(given: argparse.Namespace) -> FixedRateSettings:
    return FixedRateSettings(rate_per_s=given.rate, servers=given.servers, queued_max=given.max_num_queued_reqs)


def _batching(given: argparse.Namespace) -> BatchingSettings:
    preset = PRESETS[given.preset]()
    return replace(
        preset,
        running_max=given.max_num_seqs or preset.running_max,
        batch_tokens_max=given.max_num_batched_tokens or preset.batch_tokens_max,
        queued_max=given.max_num_queued_reqs,
        kv_blocks=given.num_gpu_blocks_override or preset.kv_blocks,
        block_tokens=given.block_size or preset.block_tokens,
        report_tokens=given.stream_interval,
        abort_lag_steps=given.abort_lag_steps,
    )


async def _serve(settings: FakeSettings) -> None:
    engine = FakeEngine(settings)
    url = await engine.start()
    print(f"listening on {url}", flush=True)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.dead.set)
    await engine.dead.wait()
    await engine.stop()
