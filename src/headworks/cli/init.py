"""`headworks init URL`: a first configuration for a live engine, with every value's source beside it.

What is written has been read back as `headworks check` would read it, so it can be used as it stands. Nothing is
overwritten unless `--force` is said, and no secret is ever written: keys are named, `env:NAME`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from pydantic import TypeAdapter, ValidationError

from headworks.config import secret
from headworks.config.load import load_bytes
from headworks.config.values import EngineUrl, SecretReference
from headworks.engines.base import EngineError
from headworks.tools.engine_probe import Found, probe
from headworks.tools.first_file import KEY_VARIABLE, TENANT, first_file, pool_name, requests_max, tenant_tokens_max, tokens_max

KEY_BYTES = 32
VERB = "init"


def init(
    url: Annotated[str, typer.Argument(metavar="URL", help="A live engine: http://HOST:PORT.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("headworks.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write it even if there is one.")] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The engine's own key, as env:NAME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was found and written as JSON.")] = False,
) -> None:
    """Ask a live engine what it can hold, and write a commented headworks.yaml.

    Exit: 0 it was written, 2 the engine could not be asked or the file could not be written.
    """
    address, key = checked_address(url, VERB), None if api_key is None else asked_key(api_key, VERB)
    if out.exists() and not force:
        could_not(f"{out} is there already; --force writes over it, --out writes another.", VERB)
    try:
        found = asyncio.run(probe(address, key, time.monotonic))
    except EngineError as error:
        could_not(
            f"{error}. Is an engine there, and ready? It has to list its models at /v1/models, as OpenAI's API does.", VERB
        )
    text = first_file(found, address, api_key, time.strftime("%Y-%m-%d", time.gmtime()))
    read_back(text, out, VERB)
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        could_not(f"{out} cannot be written: {error.strerror}.", VERB)
    _say(found, out, as_json)


def checked_address(url: str, verb: str) -> str:
    """An engine's base URL, whichever way it was given; ends the verb where it is none."""
    base = url.rstrip("/").removesuffix("/v1")
    return _checked(EngineUrl, base if "://" in base else f"http://{base}", url, verb)


def _checked(kind: Any, value: str, given: str, verb: str) -> str:
    try:
        return str(TypeAdapter(kind).validate_python(value))
    except ValidationError as error:
        could_not(f"{given}: {error.errors(include_url=False)[0]['msg']}.", verb)


def asked_key(reference: str, verb: str) -> str:
    """The engine's own key, by its name; ends the verb where there is none."""
    _checked(SecretReference, reference, "--api-key", verb)
    fault = secret.fault(reference, os.environ)
    if fault is not None:
        could_not(f"--api-key {reference}: {fault}.", verb)
    return secret.resolve(reference, os.environ).reveal()


def read_back(text: str, out: Path, verb: str) -> None:
    """As `check` will read it, with a key where the example tenant's is still to come; ends the verb where it is unusable."""
    around = {**os.environ, KEY_VARIABLE: secrets.token_urlsafe(KEY_BYTES)}
    loaded = load_bytes(text.encode(), str(out), around)
    if loaded.config is None:
        problems = "; ".join(str(problem) for problem in loaded.problems)
        could_not(f"what the engine says makes no usable file: {problems}", verb)


def _say(found: Found, out: Path, as_json: bool) -> None:
    if as_json:
        written = {
            "file": str(out),
            "engine": asdict(found),
            "pool": pool_name(found),
            "active_tokens_max": tokens_max(found),
            "active_requests_max": requests_max(found),
            "tenant": {"name": TENANT, "key_variable": KEY_VARIABLE, "active_tokens_max": tenant_tokens_max(found)},
        }
        typer.echo(msgspec.json.format(msgspec.json.encode(written), indent=2).decode())
        return
    typer.echo(f"{out} written: {found.product}, {', '.join(found.models)}; {_held(found)}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo("\nNext (the key is made for you, is shown once and is kept nowhere):\n")
    if KEY_VARIABLE not in os.environ:
        typer.echo(f"  export {KEY_VARIABLE}={secrets.token_urlsafe(KEY_BYTES)}")
    typer.echo(f"  headworks check {out}")
    typer.echo(f"  headworks serve --config {out}")


def _held(found: Found) -> str:
    context = f"context {found.context_tokens:,}" if found.context_tokens else "context not stated"
    memory = f"{found.kv_tokens:,} tokens of memory, of which {tokens_max(found):,} may be reserved" if found.kv_tokens else ""
    return f"{context}, {memory or 'memory not stated'}"


def could_not(sentence: str, verb: str) -> NoReturn:
    """Says why, and ends the verb."""
    typer.echo(f"headworks {verb}: {sentence}", err=True)
    raise typer.Exit(2)
