"""`headworks.yaml` → a `Config`, or every problem of the file at once.

Three kinds of problem are found in one go: what is not YAML, what the schema refuses, and what does not fit together
(`checks.py`). To find the third beside the second, refused values are taken out and the rest is read again; a relation
that involves something taken out is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headworks.config import checks, problems, tree
from headworks.config.document import BYTES_MAX, Document, DocumentError, Path, parse
from headworks.config.problem import ConfigError, Problem
from headworks.config.schema import NOT_YET_IN_FORCE, Config, NotYet

ROUNDS_MAX = 8
"""Taking a value out can make what is around it incomplete; deeper than the schema nests it cannot go."""


@dataclass(slots=True)
class Loaded:
    """What became of a file. `config` is there exactly when there are no problems."""

    file: str
    config: Config | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    is_readable: bool = True
    """False: there is no such file, or it may not be read."""

    def config_or_raise(self) -> Config:
        """The configuration; raises `ConfigError` with every problem."""
        if self.config is None:
            raise ConfigError(self.problems)
        return self.config


def load(file: str, environment: Mapping[str, str], *, exposed_ok: bool = False) -> Loaded:
    """Read a file. `exposed_ok`: the operator said that listening off loopback without TLS or keys is meant."""
    try:
        with File(file).open("rb") as stream:
            raw = stream.read(BYTES_MAX + 1)
    except OSError as error:
        problem = Problem(file, 0, "", f"cannot be read: {error.strerror or error}")
        return Loaded(file, None, (problem,), (), is_readable=False)
    return load_bytes(raw, file, environment, exposed_ok=exposed_ok)


def load_bytes(raw: bytes, file: str, environment: Mapping[str, str], *, exposed_ok: bool = False) -> Loaded:
    """The same for text that is already there; `file` is the name in messages."""
    try:
        document = parse(raw)
    except DocumentError as error:
        return Loaded(file, None, (Problem(file, error.line, "", error.text),), ())
    return _judge(document, file, environment, exposed_ok)


def _judge(document: Document, file: str, environment: Mapping[str, str], exposed_ok: bool) -> Loaded:
    wrong = [Problem(file, line, problems.spelled(path), text) for path, line, text in document.faults]
    faulty = list(document.unread)
    config, errors = _validate(document.value)
    for error in errors:
        path = problems.place(error, document.value)
        if path in faulty:
            continue
        text = problems.sentence(error, path, problems.is_about_key(error))
        wrong.append(Problem(file, document.line(path), problems.spelled(path), text))
        faulty.append(path)
    sound = config or _without(document.value, faulty)
    warnings = _not_in_force(document, file)
    for finding in checks.findings(sound, environment, exposed_ok) if sound else ():
        if any(_touches(path, fault) for path in finding.paths for fault in faulty):
            continue
        listed = warnings if finding.is_warning else wrong
        listed.append(Problem(file, document.line(finding.paths[0]), problems.spelled(finding.paths[0]), finding.text))
    in_order = tuple(sorted(wrong, key=lambda problem: (problem.line, problem.path)))
    refused = [problem.path for problem in wrong]
    kept = [warning for warning in warnings if warning.path not in refused]
    warned = tuple(sorted(kept, key=lambda problem: (problem.line, problem.path)))
    return Loaded(file, None if in_order else config, in_order, warned)


def _validate(value: Any) -> tuple[Config | None, list[ErrorDetails]]:
    try:
        return Config.model_validate(value), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _without(value: Any, faulty: list[Path]) -> Config | None:
    """The rest of a file once what is faulty has been taken out, if a rest can be read."""
    rest = deepcopy(value)
    for path in faulty:
        _take_out(rest, path)
    for _ in range(ROUNDS_MAX):
        config, errors = _validate(rest)
        if config is not None:
            return config
        places = [(problems.place(error, rest), error["type"]) for error in errors]
        for path, kind in places:
            gone = path[:-1] if kind == "missing" else path
            faulty.append(gone)
            _take_out(rest, gone)
    return None


def _take_out(value: Any, path: Path) -> None:
    """Remove a key. For a list item its whole list goes: the other positions must keep their numbers."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    for step in path[:-1]:
        inside = isinstance(value, dict) or (isinstance(value, list) and isinstance(step, int) and step < len(value))
        value = (value.get(step) if isinstance(value, dict) else value[step]) if inside else None
    if path and isinstance(value, dict):
        value.pop(path[-1], None)


def _touches(path: Path, fault: Path) -> bool:
    """Whether a fault makes a place unknown: the place is inside it; it is one of the place's own entries; or it is an
    unknown key that may have been meant to be the place."""
    inside = path[: len(fault)] == fault
    entry = fault[:-1] == path
    return inside or entry or (tree.find(fault) is None and _may_mean(fault, path))


def _may_mean(fault: Path, path: Path) -> bool:
    beside = path[: len(fault) - 1] == fault[:-1] and len(path) >= len(fault)
    return beside and (path[len(fault) - 1] == tree.nearest(fault) or path[-1] == fault[-1])


def _not_in_force(document: Document, file: str) -> list[Problem]:
    """A warning for each key that stands in the file and does nothing yet."""
    found: list[Problem] = []
    by_pattern = {entry.key: entry for entry in NOT_YET_IN_FORCE}
    for path, line in document.lines.items():
        entry = by_pattern.get(".".join(tree.pattern(path)))
        if entry is not None and _has_no_effect(entry, _at(document.value, path)):
            text = f"accepted, not in force in this version: {entry.instead}"
            found.append(Problem(file, line, problems.spelled(path), text))
    return found


def _has_no_effect(entry: NotYet, value: Any) -> bool:
    return value not in entry.but and (not entry.only or value in entry.only)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        known = isinstance(value, dict) or (isinstance(value, list) and isinstance(step, int) and step < len(value))
        value = (value.get(step) if isinstance(value, dict) else value[step]) if known else None
    return value
