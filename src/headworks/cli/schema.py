"""`headworks schema`: the JSON Schema of `headworks.yaml`, so that an editor completes keys and explains them.

With `--openapi`: what both ports take.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headworks.config.schema import json_schema
from headworks.gateway.openapi import document


def schema(
    openapi: Annotated[bool, typer.Option("--openapi", help="What both ports take, as OpenAPI 3.1, instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="It always is JSON; every verb takes this option.")] = False,
) -> None:
    """Print the JSON Schema of the configuration file, for editors.

    Save it, and begin the file with: # yaml-language-server: $schema=FILE
    """
    typer.echo(msgspec.json.format(msgspec.json.encode(document() if openapi else json_schema()), indent=2).decode())
