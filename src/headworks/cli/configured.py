"""What a gateway runs on, as another process reads it (`configure.py`).

A gateway that serves cannot read one itself (`serving.py`) and has its file read again elsewhere. A thousand tenants are half a
second of an interpreter, too, that requests need. Both processes are this installation, and secrets pass by a pipe.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

from headworks.config.problem import ConfigError, Problem
from headworks.config.settings import Settings
from headworks.core.policy import Policy


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
    done = subprocess.run(command, input=pickle.dumps((asked, number)), stdout=subprocess.PIPE, check=False)  # noqa: S603 (ours)
    if done.returncode != 0:
        why = f"the process that reads the configuration ended with {done.returncode}"
        raise ConfigError((Problem(asked.file or "--upstream", 0, "", why),))
    found: Configured | tuple[Problem, ...] = pickle.loads(done.stdout)  # noqa: S301 (as above)
    if isinstance(found, tuple):
        raise ConfigError(found)
    return found
