"""`headworks mode show|observe|enforce`: refuse nobody for a while, or refuse again, whatever the configuration says (F13).

    observe    everything is decided and recorded, and nobody is refused
    enforce    the other way round; going back to what the configuration says takes the order back

What holds for whom, and for how long, is said in the answer. With --config every worker of this host is told.
"""

from __future__ import annotations

from typing import Any

import typer

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, ReasonOption, admin_port, declare, print_json

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Refuse nobody for a while, or refuse again.")


@app.command()
def show(admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the mode, and by whose order it is what it is.

    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    _said(admin_port(admin, config).read("/admin/orders", "mode", "holds"), as_json)


@app.command()
def observe(reason: ReasonOption, admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse nobody from now on; what would have been refused is written down.

    Exit: 0 it observes, 2 it could not be told.
    """
    _said(declare(admin, config, "/admin/mode/observe", {"reason": reason}), as_json)


@app.command()
def enforce(reason: ReasonOption, admin: AdminOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse from now on what is beyond a limit.

    Exit: 0 it enforces, 2 it could not be told.
    """
    _said(declare(admin, config, "/admin/mode/enforce", {"reason": reason}), as_json)


def _said(shown: dict[str, Any], as_json: bool) -> None:
    order = shown["mode_order"]
    if as_json:
        print_json(shown)
    elif order is None:
        typer.echo(f"mode {shown['mode']}, as the configuration says")
    else:
        typer.echo(f"mode {shown['mode']}, by {order['actor']}, {order['utc'][:19]}Z: {order['reason']} ({shown['holds']})")
