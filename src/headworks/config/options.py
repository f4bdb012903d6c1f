"""What the command line says instead of a file, or beside it. Held to the same schema and the same relations."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headworks.config import checks, problems
from headworks.config.problem import ConfigError, Problem
from headworks.config.schema import Config


def for_upstream(url: str, engine: str = "vllm") -> Config:
    """The configuration of `serve --upstream URL`: one pool of one engine, one anonymous tenant, loopback.

    Raises `ConfigError` whose problems name the option.
    """
    evidence = "E1" if engine == "openai" else "E3"
    value = {
        "ledger": {"url": "memory:"},
        "usage": {"path": None},
        "pools": {"upstream": {"replicas": [{"url": url, "engine": engine}], "evidence_min": evidence}},
    }
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        raise ConfigError(tuple(_upstream_problem(found) for found in error.errors(include_url=False))) from None
    _hold(config, {}, False, "--upstream")
    return config


def _upstream_problem(error: ErrorDetails) -> Problem:
    name = "--engine" if error["loc"][-1] == "engine" else "--upstream"
    return Problem(name, 0, "", problems.sentence(error, tuple(error["loc"]), False))


def with_options(
    config: Config,
    environment: Mapping[str, str],
    *,
    listen: str | None = None,
    admin: str | None = None,
    workers: int | None = None,
    observe: bool = False,
    exposed_ok: bool = False,
) -> Config:
    """A configuration with what the options change in it. Raises `ConfigError` whose problems name the option."""
    changed = {"listen": listen, "admin": admin, "workers": workers, "mode": "observe" if observe else None}
    server = {**config.server.model_dump(), **{key: value for key, value in changed.items() if value is not None}}
    try:
        changed_config = config.model_copy(update={"server": type(config.server).model_validate(server)})
    except ValidationError as error:
        found = error.errors(include_url=False)
        listed = [Problem(f"--{e['loc'][-1]}", 0, "", problems.sentence(e, ("server", *e["loc"]), False)) for e in found]
        raise ConfigError(tuple(listed)) from None
    _hold(changed_config, environment, exposed_ok, "command line")
    return changed_config


def _hold(config: Config, environment: Mapping[str, str], exposed_ok: bool, source: str) -> None:
    """Whether it all fits together; the place in the file is not named, since an option made the difference."""
    found = [finding for finding in checks.findings(config, environment, exposed_ok) if not finding.is_warning]
    if found:
        raise ConfigError(tuple(Problem(source, 0, "", finding.text) for finding in found))
