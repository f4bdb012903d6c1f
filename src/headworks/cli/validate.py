"""`headworks validate`: the one-page overload and failure policy of a configuration, every blank filled in, or why not (F5).

The first replica of the pool is examined as `headworks doctor` would, measured as `headworks calibrate` would, then offered a
small load through a gateway of this very file that is started for it, on ports and with a ledger of its own. It gives the
engine all it can bear for a minute or so: an engine that others use is not measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import httpx
import msgspec
import typer
import yaml

from headworks.cli.init import could_not
from headworks.config import build
from headworks.config.load import load
from headworks.config.schema import Config
from headworks.core.policy import Policy
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.kinds import ENGINES
from headworks.engines.pool import Pool
from headworks.tools.decision_log import LogError
from headworks.tools.doctor import Order as Examination
from headworks.tools.doctor import examine
from headworks.tools.doctor_wire import Ward
from headworks.tools.load_engine import LoadError
from headworks.tools.measure import Order, bench_at, bench_of, measure
from headworks.tools.policy_facts import FAIL, Facts
from headworks.tools.policy_physics import ShapeError, shape_of
from headworks.tools.policy_probe import Promise, through
from headworks.tools.policy_text import Page, html, markdown, page_of, told
from headworks.tools.policy_traffic import traffic_of

VERB = "validate"
TENANT, KEY_VARIABLE = "headworks-validate", "HEADWORKS_VALIDATE_KEY"
EXACT_KINDS = ("vllm", "sglang", "llamacpp")
READY_S_MAX = 30.0
TROUBLE_CHARACTERS_MAX = 400


@dataclass(slots=True)
class Chosen:
    """What of the file the page is about."""

    config: Config
    policy: Policy
    pool: str
    service_class: str
    is_anonymous: bool
    """There are no tenants: the small load needs no key."""
    url: str
    api_key: str | None
    ca: str | None


@dataclass(slots=True)
class Gateway:
    """One that was started for the load."""

    url: str
    admin: str
    key: str | None
    """Of the load's tenant; None where there are no tenants."""
    admin_headers: dict[str, str]


def validate(
    config: Annotated[Path, typer.Option(help="The configuration whose policy it is.")] = Path("headworks.yaml"),
    pool: Annotated[str | None, typer.Option(help="Which pool. Default: the first.")] = None,
    service_class: Annotated[str, typer.Option("--class", help="Whose promises.")] = "interactive",
    minutes: Annotated[float, typer.Option(min=0.1, max=600.0, help="How long to measure the engine.")] = 1.0,
    burst: Annotated[
        float, typer.Option(min=2.0, max=600.0, help="Seconds of each part of the load through the policy.")
    ] = 10.0,
    measured: Annotated[bool, typer.Option("--measure/--no-measure", help="Whether to send anything to the engine.")] = True,
    model_config: Annotated[Path | None, typer.Option(help="The model's config.json: its shape gives bytes per token.")] = None,
    accelerator_gib: Annotated[float | None, typer.Option(min=1.0, help="Memory of one accelerator.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the page there: .md or .html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all fields and boxes as JSON.")] = False,
) -> None:
    """Fill in the overload and failure policy: each field with its source, each box with what was seen.

    Exit: 0 no box failed, 1 one did, 2 the file could not be used or the page not be written.
    """
    if out is not None and out.suffix not in (".md", ".html"):
        could_not(f"--out {out}: a name that ends with .md or .html says what to write.", VERB)
    chosen = _chosen(config, pool, service_class)
    facts = Facts(chosen.config, chosen.policy, chosen.pool, service_class, str(config), chosen.url)
    _read(facts, model_config, accelerator_gib)
    if measured:
        asyncio.run(_measure(facts, chosen, config, minutes, burst, as_json))
    else:
        facts.why |= dict.fromkeys(("report", "measured", "through"), "--no-measure: nothing was sent")
    page = page_of(facts, time.strftime("%Y-%m-%d", time.gmtime()))
    _write(page, out, as_json)
    if not page.holds:
        raise typer.Exit(1)


def _chosen(file: Path, pool: str | None, service_class: str) -> Chosen:
    loaded = load(str(file), os.environ, exposed_ok=True)
    config = loaded.config_or_raise()
    policy, settings = build.policy(config, number=1), build.settings(config, os.environ)
    name = pool or next(iter(config.pools))
    if name not in config.pools:
        could_not(f"--pool {name}: {file} has {', '.join(config.pools)}.", VERB)
    if service_class not in policy.classes:
        could_not(f"--class {service_class}: {file} has {', '.join(policy.classes)}.", VERB)
    replica = next(one for one in settings.replicas if one.pool == name)
    key = None if replica.api_key is None else replica.api_key.reveal()
    return Chosen(config, policy, name, service_class, settings.is_anonymous, replica.url, key, replica.ca)


def _read(facts: Facts, model_config: Path | None, accelerator_gib: float | None) -> None:
    """What stands in files."""
    if accelerator_gib is not None:
        facts.accelerator_bytes = int(accelerator_gib * 2**30)
    if model_config is None:
        facts.why["shape"] = "needs --model-config FILE, the model's config.json"
    else:
        try:
            facts.shape = shape_of(model_config)
        except ShapeError as error:
            could_not(f"{error}.", VERB)
    directory = facts.config.log.decisions
    if directory is None:
        facts.why["traffic"] = "log.decisions is null: no decision log is kept"
        return
    try:
        facts.traffic = traffic_of(Path(directory))
    except LogError as error:
        facts.why["traffic"] = str(error)


async def _measure(facts: Facts, chosen: Chosen, file: Path, minutes: float, burst_s: float, quiet: bool) -> None:
    """Each part that cannot be had says why, and the next ones go on where they can."""

    def tell(line: str) -> None:
        if not quiet:
            typer.echo(f"{line} …", err=True)

    try:
        facts.report = await examine(Examination(chosen.url, chosen.api_key, ca=chosen.ca), tell)
    except EngineError as error:
        facts.why |= dict.fromkeys(("report", "measured", "through"), str(error))
        return
    if facts.report.is_busy:
        why = "others use the engine: what it can carry can only be measured alone"
        facts.why |= {"measured": why, "through": why}
        return
    promise_s = chosen.policy.classes[chosen.service_class].ttft_slo_s or 1.0
    kind, seconds = facts.report.found.kind, 60.0 * minutes
    headers = () if chosen.api_key is None else (("Authorization", f"Bearer {chosen.api_key}"),)
    order = Order(chosen.url, seconds, ttft_slo_s=promise_s, exact=kind in EXACT_KINDS, headers=headers)
    try:
        facts.measured = await measure(order, tell)
    except LoadError as error:
        facts.why |= {"measured": str(error), "through": f"the engine was not measured: {error}"}
        return
    tell("a gateway with this policy, for a small load through it")
    try:
        with _gateway(chosen, file) as gateway:
            await _through(facts, chosen, order, gateway, burst_s)
    except (LoadError, EngineError) as error:
        facts.why["through"] = str(error)


async def _through(facts: Facts, chosen: Chosen, order: Order, gateway: Gateway, burst_s: float) -> None:
    url, key = gateway.url, gateway.key
    assert facts.report is not None and facts.measured is not None
    found, section = facts.report.found, chosen.policy.classes[chosen.service_class]
    headers = tuple((name, value) for name, value in (("Authorization", f"Bearer {key}"),) if key)
    headers += (("Headworks-Class", chosen.service_class),)
    front = Order(url, order.duration_s, order.mix, order.ttft_slo_s, exact=order.exact, headers=headers)
    engine = ENGINES[found.kind]("validate", chosen.url, time.monotonic, chosen.api_key, ca=chosen.ca)
    plain = Pool(Endpoint(url, key), time.monotonic)
    context_tokens = facts.measured.context_tokens
    rng = Random(time.time_ns())  # noqa: S311 (words that no cache knows, not a secret)
    ward = Ward(engine, url, key, found.kind, facts.measured.model, context_tokens, plain, rng)
    promise = Promise(section.ttft_slo_s, section.tpot_slo_s, section.e2e_slo_s)
    try:
        bench = bench_at(front, await bench_of(order))
        known = partial(_drain_error, gateway, chosen.pool)
        facts.through = await through(bench, facts.measured, promise, facts.replicas, burst_s, ward, known)
    finally:
        await ward.close()


async def _drain_error(gateway: Gateway, pool: str) -> float | None:
    """How well it knows how fast this pool drains; None where it does not say."""
    async with httpx.AsyncClient(base_url=gateway.admin, headers=gateway.admin_headers, trust_env=False) as client:
        try:
            shown = (await client.get("/admin/snapshot")).raise_for_status().json()
        except httpx.HTTPError:
            return None
    ratio = shown["pools"][pool]["drain_error_ratio"]
    return None if ratio is None else float(ratio)


@contextmanager
def _gateway(chosen: Chosen, file: Path) -> Iterator[Gateway]:
    """`headworks serve` with this file, but for its ports, ledger and logs."""
    key = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as trouble:
        own = Path(directory) / "headworks.yaml"
        own.write_text(json.dumps(_own(file, chosen)), encoding="utf-8")  # JSON is YAML
        command = sys.executable, "-P", "-m", "headworks.cli.main", "serve", "--config", str(own), "--json"
        around = {**os.environ, "PYTHONUNBUFFERED": "1", KEY_VARIABLE: key}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=trouble, text=True, env=around)  # noqa: S603
        assert child.stdout is not None
        try:
            first, ready = child.stdout.readline(), child.stdout.readline()
            if not ready:
                trouble.seek(0)
                raise LoadError(f"a gateway with this file does not start: {trouble.read()[-TROUBLE_CHARACTERS_MAX:]}")
            said = json.loads(first)
            url = str(said["listening"]).removesuffix("/v1")
            yield Gateway(url, str(said["admin"]), None if chosen.is_anonymous else key, {"authorization": f"Bearer {key}"})
        finally:
            child.terminate()
            try:
                child.wait(READY_S_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()


def _own(file: Path, chosen: Chosen) -> dict[str, Any]:
    """The file with ports, ledger and logs of its own, and one tenant more: the load's, which no limit holds back."""
    given: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    server = given.get("server") or {}
    given["server"] = {**server, "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "workers": 1, "drain_s": 1, "mode": "enforce"}
    given["server"]["admin_key"] = f"env:{KEY_VARIABLE}"
    given["ledger"] = {"url": "memory:"}
    given |= {"log": {"decisions": None}, "usage": {"path": None}}
    if not chosen.is_anonymous:
        given["tenants"] = {**given["tenants"], TENANT: {"keys": [f"env:{KEY_VARIABLE}"], "class": chosen.service_class}}
    return given


def _write(page: Page, out: Path | None, as_json: bool) -> None:
    if out is not None:
        try:
            out.write_text(html(page) if out.suffix == ".html" else markdown(page), encoding="utf-8")
        except OSError as error:
            could_not(f"{out} cannot be written: {error.strerror}.", VERB)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(told(page)), indent=2).decode())
    elif out is None:
        typer.echo(markdown(page))
    else:
        failed = [box.line for box in page.boxes if box.outcome == FAIL]
        unknown = sum(field.value is None for field in page.fields)
        typer.echo(
            f"{out} written: {len(page.fields)} fields, {unknown} of them not measurable here; failed: {failed or 'none'}"
        )
