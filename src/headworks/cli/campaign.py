"""What `headworks sim --campaign` prints: what was reached, what was missed, and each broken history as short as it can be."""

from __future__ import annotations

import os

import typer
from rich.console import Console
from rich.table import Table

from headworks.sim.campaign import Campaign, campaign_of, run_world
from headworks.sim.campaign_goals import GOALS_FROM_SEEDS, missed
from headworks.sim.compare import as_json, make_book
from headworks.sim.histories import HISTORIES, goals_of
from headworks.sim.shrinking import Shortened, only, parts_of, shorten, told

SHORTENED_MAX = 3
"""So many broken histories are shortened; the others are named."""


def run_campaign(first: int, seeds: int, histories: str, processes: int | None, json: bool) -> None:
    """Exit 1 when an invariant broke, or when so many seeds missed a goal."""
    if histories not in HISTORIES:
        typer.echo(f"headworks sim: --histories is one of {', '.join(HISTORIES)}", err=True)
        raise typer.Exit(2)
    found = campaign_of(first, seeds, histories, processes or os.cpu_count() or 1)
    goals = missed(found.reached, goals_of(histories))
    broken = sorted(found.failed.items())
    shortened = [shorten(seed, problem, histories) for seed, problem in broken[:SHORTENED_MAX]]
    if json:
        typer.echo(as_json(_as_value(found, shortened, goals, histories)))
    else:
        _summary(found, goals)
    for one in shortened:
        _tell(one)
    for seed, problem in broken[SHORTENED_MAX:]:
        typer.echo(f"does not hold: {problem}\n  again: {_again(seed, histories)}", err=True)
    raise typer.Exit(1 if broken or (goals and seeds >= GOALS_FROM_SEEDS) else 0)


def show_history(seed: int, histories: str, keep: str) -> None:
    """One history again, with nothing but the parts named, line by line. Exit 1 when it breaks."""
    setup = HISTORIES[histories](seed, make_book)
    parts, known = keep.split(), parts_of(setup)
    unknown = [name for name in parts if name not in known]
    if unknown:
        typer.echo(f"headworks sim: {', '.join(unknown)} is no part of it; known: {' '.join(known)}", err=True)
        raise typer.Exit(2)
    problem = run_world(only(setup, parts))
    typer.echo("\n".join(told(only(HISTORIES[histories](seed, make_book), parts))))
    raise typer.Exit(1 if problem else 0)


def _as_value(found: Campaign, shortened: list[Shortened], goals: list[str], histories: str) -> dict[str, object]:
    by_seed = {one.seed: one for one in shortened}
    violations: list[dict[str, object]] = []
    for seed, problem in sorted(found.failed.items()):
        one = by_seed.get(seed)
        violation: dict[str, object] = {"seed": seed, "broken": problem, "again": _again(seed, histories)}
        if one is not None:
            violation |= {"again": one.again, "parts": one.parts, "parts_before": one.parts_before, "trace": one.lines}
        violations.append(violation)
    return {"seeds": found.seeds, "violations": violations, "reached": found.reached, "missed_goals": goals}


def _again(seed: int, histories: str) -> str:
    return f"headworks sim --campaign{'' if histories == 'short' else f' --histories {histories}'} --seed {seed}"


def _tell(one: Shortened) -> None:
    lines = "\n    ".join(one.lines)
    size = f"{len(one.parts)} of {one.parts_before} parts"
    typer.echo(f"does not hold: {one.problem}\n  shortened to {size}:\n    {lines}\n  again: {one.again}", err=True)


def _summary(found: Campaign, goals: list[str]) -> None:
    table = Table(title=f"{found.seeds} seeds, {found.events} events, {len(found.failed)} failed")
    table.add_column("reached")
    table.add_column("times", justify="right")
    for what, times in sorted(found.reached.items()):
        table.add_row(what, str(times))
    Console().print(table)
    if goals:
        typer.echo(f"not reached: {', '.join(goals)}")
