"""`headworks calibrate URL`: measure what a live engine can do, and write limits at 0.8 of it into a commented file (C4)."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headworks.cli.init import asked_key, checked_address, could_not, read_back
from headworks.engines.base import EngineError
from headworks.tools.engine_probe import Found, probe
from headworks.tools.first_file import first_file, measured_requests_max, measured_tokens_per_s, tokens_max
from headworks.tools.load_engine import LoadError
from headworks.tools.measure import SIZES, Measured, Order, measure

VERB = "calibrate"
PRODUCTS_WITH_EXACT_LENGTHS = ("vLLM", "SGLang", "llama.cpp")


def calibrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="A live engine that nobody else uses: http://HOST:PORT.")],
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, max=600.0, help="How long to measure.")] = 10.0,
    mix: Annotated[str, typer.Option("--mix", help="Per cent of small, medium and large requests.")] = "70/20/10",
    ttft_slo: Annotated[float, typer.Option(min=0.001, help="Seconds to the first token that count as in time.")] = 1.0,
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("headworks.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write it even if there is one.")] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The engine's own key, as env:NAME.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the first one served.")] = None,
    seed: Annotated[int, typer.Option(help="The order of requests, and their words.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON.")] = False,
) -> None:
    """Measure what a live engine can do, and write a headworks.yaml with limits at 0.8 of it.

    It gives the engine all it can bear for that long. Exit: 0 measured, 1 the service rate is known only to more than ±10 %
    (the file is written and says so), 2 it could not be measured or the file could not be written.
    """
    address, key = checked_address(url, VERB), None if api_key is None else asked_key(api_key, VERB)
    shares = shares_of(mix)
    if out.exists() and not force:
        could_not(f"{out} is there already; --force writes over it, --out writes another.", VERB)
    if not os.access(out.parent, os.W_OK):
        could_not(f"{out} cannot be written: {out.parent} is no directory that may be written into.", VERB)
    try:
        found = asyncio.run(probe(address, key, time.monotonic))
        headers = () if key is None else (("Authorization", f"Bearer {key}"),)
        exact = found.product.startswith(PRODUCTS_WITH_EXACT_LENGTHS)
        order = Order(address, 60.0 * minutes, shares, ttft_slo, model, exact, headers, seed)
        measured = asyncio.run(measure(order, lambda line: None if as_json else typer.echo(line, err=True)))
    except (EngineError, LoadError) as error:
        could_not(f"{error}.", VERB)
    text = first_file(found, address, api_key, time.strftime("%Y-%m-%d", time.gmtime()), measured)
    read_back(text, out, VERB)
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        could_not(f"{out} cannot be written: {error.strerror}.", VERB)
    _say(found, measured, out, as_json)
    if measured.is_wide:
        raise typer.Exit(1)


def shares_of(mix: str) -> tuple[int, ...]:
    """`70/20/10`: per cent of each size, which make a hundred."""
    parts = mix.split("/")
    shares = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(shares) != len(parts) or len(shares) != len(SIZES) or sum(shares) != 100:
        could_not(f"--mix {mix}: three whole numbers that make 100, as 70/20/10.", VERB)
    return shares


def _say(found: Found, measured: Measured, out: Path, as_json: bool) -> None:
    limits = {
        "active_requests_max": measured_requests_max(measured),
        "active_tokens_max": tokens_max(found),
        "tenant_tokens_per_s": measured_tokens_per_s(measured),
    }
    if as_json:
        told = {
            "file": str(out),
            "engine": asdict(found),
            "measured": asdict(measured),
            "wide": measured.is_wide,
            "limits": limits,
        }
        typer.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return
    full = measured.full
    for step in (*measured.ramp, full):
        typer.echo(_line(step.clients, step.requests_per_s, step.error_ratio, step.output_tokens_per_s, step.ttft_p95_s))
    for rate in measured.rates:
        typer.echo(f"at {rate.requests_per_s:8.2f} requests/s: {rate.on_time_ratio:6.1%} of {rate.offered} in time")
    wide = " (wider than ±10 %: give it more minutes)" if measured.is_wide else ""
    typer.echo(f"service rate {full.requests_per_s:.2f} requests/s ±{full.error_ratio:.0%}{wide}; {out} written: {limits}")


def _line(clients: int, rate_per_s: float, error_ratio: float, output_tokens_per_s: float, ttft_p95_s: float | None) -> str:
    first = "none" if ttft_p95_s is None else f"{ttft_p95_s:.3f} s"
    rate = f"{rate_per_s:8.2f} requests/s ±{error_ratio:4.0%}"
    return f"{clients:4d} clients: {rate}, {output_tokens_per_s:9,.0f} tokens/s written, first token p95 {first}"
