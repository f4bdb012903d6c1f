"""`python -m headworks.cli.configure`: reads a configuration for a gateway that asks for it, and ends (`configured.py`)."""

from __future__ import annotations

import os
import pickle
import sys
import time

from headworks import __version__
from headworks.cli.configured import Asked, Configured
from headworks.cli.key_notes import key_notes
from headworks.config import build, load, options
from headworks.config.problem import ConfigError
from headworks.config.schema import Config


def configure(asked: Asked, number: int, *, with_notes: bool = False) -> Configured:
    """Read it here. `with_notes`: stored keys are looked at as well. Raises `ConfigError`."""
    config, notes = _read(asked, with_notes)
    chosen = options.with_options(
        config,
        os.environ,
        listen=asked.listen,
        admin=asked.admin,
        workers=asked.workers,
        observe=asked.observe,
        exposed_ok=asked.exposed,
    )
    return Configured(build.policy(chosen, number=number), build.settings(chosen, os.environ, asked.worker), notes)


def _read(asked: Asked, with_notes: bool) -> tuple[Config, tuple[str, ...]]:
    if asked.file is None:
        config = options.for_upstream(asked.upstream, asked.engine)
        return config.model_copy(update={"log": config.log.model_copy(update={"decisions": asked.decisions})}), ()
    loaded = load.load(asked.file, os.environ, exposed_ok=asked.exposed)
    config = loaded.config_or_raise()
    return config, tuple(map(str, key_notes(loaded, os.environ, time.time())[0])) if with_notes else ()


def main() -> None:
    asked, number = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the gateway that started this)
    try:
        found: object = configure(asked, number)
    except ConfigError as error:
        found = error.problems
    sys.stdout.buffer.write(f"{__version__}\n".encode() + pickle.dumps(found))


if __name__ == "__main__":
    main()
