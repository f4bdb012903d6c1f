"""What a gateway runs on, as another process reads it (`configure.py`).

A gateway that serves cannot read one itself (`serving.py`) and has its file read again elsewhere. A thousand tenants are half a
second of an interpreter, too, that requests need. Both processes are this installation, and secrets pass by a pipe.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

from headworks import __version__
from headworks.config.problem import ConfigError, Problem
from headworks.config.settings import Settings
from headworks.core.policy import Policy

READ_S_MAX = 60.0
"""A file that cannot be read to its end must not keep the next reload, nor the end of this process, from coming."""


@dataclass(slots=True)
class Asked:
    """What the command line said. It holds over the file, also when that is read again."""

    file: str | None
    """None: `upstream` is all there is."""
    upstream: str = ""
    engine: str = "vllm"
    decisions: str | None = None
    listen: str | None = None
    admin: str | None = None
    workers: int | None = None
    observe: bool = False
    exposed: bool = False
    worker: int = 1


@dataclass(slots=True)
class Configured:
    """What is to be in force, and what there is to say about it."""

    policy: Policy
    settings: Settings
    notes: tuple[str, ...]


@dataclass(slots=True)
class Start:
    """What there is to serve."""

    configured: Configured
    asked: Asked
    name: str
    watch: bool
    as_json: bool


def configured(asked: Asked, number: int) -> Configured:
    """Policy `number`. Raises `ConfigError` with everything that is wrong. Waits for the other process."""
    command = (sys.executable, "-P", "-m", "headworks.cli.configure")
    given = pickle.dumps((asked, number))
    try:
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=False, timeout=READ_S_MAX)  # noqa: S603 (ours)
    except subprocess.TimeoutExpired:
        raise _unread(asked, f"the configuration has not been read within {READ_S_MAX:g} s") from None
    if done.returncode != 0:
        raise _unread(asked, f"the process that reads the configuration ended with {done.returncode}")
    version, _, told = done.stdout.partition(b"\n")
    if version.decode() != __version__:  # objects of another one may have other fields in these places
        raise _unread(asked, f"headworks {version.decode()} has been installed meanwhile; restart this one, {__version__}")
    found: Configured | tuple[Problem, ...] = pickle.loads(told)  # noqa: S301 (as above)
    if isinstance(found, tuple):
        raise ConfigError(found)
    return found


def _unread(asked: Asked, why: str) -> ConfigError:
    return ConfigError((Problem(asked.file or "--upstream", 0, "", why),))
