"""`headworks schema`: the JSON Schema of `headworks.yaml`, so that an editor completes keys and explains them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headworks.config.schema import json_schema


def schema(
    json: Annotated[bool, typer.Option("--json", help="It always is JSON; every verb takes this option.")] = False,
) -> None:
    """Print the JSON Schema of the configuration file, for editors.

    Save it, and begin the file with: # yaml-language-server: $schema=FILE
    """
    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
