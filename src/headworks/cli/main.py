"""`headworks VERB`: finds the verb, loads its module and no other, and turns what happens into an exit status.

Every verb: `--json` for machines, exit 0 it holds, 1 it does not hold, 2 it could not run. A verb is a module
`headworks.cli.VERB` with a function of its name, or with a `typer.Typer` called `app` if it has verbs of its own; it says
"does not hold" by `raise typer.Exit(1)`. A verb whose module is not part of this installation is not listed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from headworks import RUNS_AS, __version__

HOLDS, DOES_NOT_HOLD, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, UNREAD = 130, 141
"""As shells have it of a program that a signal ended: Ctrl-C, and a pipe whose reader has seen enough. Neither is an answer."""
SPEAK_FOR_THEMSELVES = ("headworks.config.problem", "headworks.ledgers.errors")
"""Where errors come from whose text says everything. By name, so that a verb loads no more than it needs."""


@dataclass(slots=True)
class Verb:
    """One line of `headworks --help`."""

    name: str
    panel: str
    summary: str

    @property
    def module(self) -> str:
        """Where it lives."""
        return f"headworks.cli.{self.name}"


VERBS: tuple[Verb, ...] = (
    Verb("serve", "Run", "Stand in front of engines: admit, let wait, or refuse with numbers."),
    Verb("demo", "Run", "A tenant floods an engine of this machine's own making: before and after."),
    Verb("top", "Run", "What a running gateway is doing: pools, tenants, classes, last decisions."),
    Verb("init", "Know", "Ask a live engine what it can hold, and write a first configuration."),
    Verb("calibrate", "Know", "Measure what a live engine can do, and write limits at 0.8 of it."),
    Verb("check", "Know", "Read a configuration file: every problem, or what will be enforced."),
    Verb("doctor", "Know", "Examine a live engine: does what is left really stop, and which flags to set."),
    Verb("validate", "Know", "Fill in the overload and failure policy of a configuration, measured on its engine."),
    Verb("schema", "Know", "Print the JSON Schema of the configuration file, for editors."),
    Verb("explain", "Ask", "Tell the story of one request: what was compared with what, and what would have helped."),
    Verb("sim", "Ask", "Run a scenario in virtual time on the same core, and hold it to what it expects."),
    Verb("plan", "Ask", "Decide a decision log once more, by another configuration: who would have come out otherwise."),
    Verb(
        "observe", "Ask", "Propose limits from a decision log, and say who would have been refused and what became of copies."
    ),
    Verb("cost", "Ask", "State what the engines of a period cost, who caused it, and what was wasted."),
    Verb("load", "Ask", "Offer recorded traffic to a server and tell what its clients got."),
    Verb("ledger", "Ask", "Show or audit what is held in a gateway's ledger; back it up, restore it."),
    Verb("replica", "Ask", "Show the engines of a gateway; let one drain, come back, or go for good."),
    Verb("policy", "Ask", "Show the policy a gateway decides by, or have it read its file again."),
    Verb("tenant", "Ask", "Freeze a tenant, so that nothing new of it is taken; thaw it."),
    Verb("log", "Ask", "Take a tenant out of a decision log; list its files."),
    Verb("mode", "Ask", "Refuse nobody for a while (observe), or refuse again (enforce)."),
    Verb("keys", "Ask", "Issue, rotate, revoke and list the API keys of tenants."),
)


def run(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        application(words)(args=words, prog_name="headworks")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich both end with 1 then
            return UNREAD
        return ended.code if isinstance(ended.code, int) else COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _could_not_run(error)
    return HOLDS


def application(words: Sequence[str]) -> typer.Typer:
    """The command line with the verb of `words` loaded; the others are only listed, so that help stays fast."""
    app = typer.Typer(
        name="headworks",
        help="Admission control for shared LLM engines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    wanted = next((word for word in words if not word.startswith("-")), None)
    for verb in VERBS:
        if verb.name == wanted and find_spec(verb.module) is not None:
            _attach(app, verb)
        elif find_spec(verb.module) is not None:
            app.command(verb.name, help=verb.summary, rich_help_panel=verb.panel)(_listed)
    return app


def _attach(app: typer.Typer, verb: Verb) -> None:
    module = import_module(verb.module)
    inner = getattr(module, "app", None)
    if isinstance(inner, typer.Typer):
        app.add_typer(inner, name=verb.name, help=verb.summary, rich_help_panel=verb.panel)
    else:
        app.command(verb.name, rich_help_panel=verb.panel)(getattr(module, verb.name))


def _listed() -> None:
    """Stands for a verb that is not the one asked for; only its line in the help is used."""
    raise AssertionError("a verb was called that is not the first word")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"{__version__} ({RUNS_AS})")
        raise typer.Exit(HOLDS)


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Admission control for shared LLM engines.

    Every verb takes --json; it exits with 0 if what was asked holds, 1 if it does not, 2 if it could not run.
    """


def _could_not_run(error: Exception) -> int:
    """What no verb expected. Its traceback goes out whole, without local values: they may be secrets."""
    if type(error).__module__ in SPEAK_FOR_THEMSELVES:
        typer.echo(str(error), err=True)
    else:
        traceback.print_exception(error)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(run())
