"""Which code runs: modules that were compiled (`scripts/compile`), or the Python beside them.

Compiled modules lie in a folder of their own, `_compiled`, with a stamp: a hash of the very sources they were made of. They
are used as long as the sources at hand have that hash, and never else: whoever edits a file runs what was edited
(docs/decisions/0023-compiled.md). `HEADWORKS_PURE=1` has Python run in any case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent
FOLDER = PACKAGE / "_compiled"
STAMP = FOLDER / "stamp"
SUFFIX = EXTENSION_SUFFIXES[0]
"""Of this Python on this platform: it is a part of the stamp."""
COMPILED = (
    "core/*.py",
    "engines/base.py",
    "engines/call.py",
    "engines/outbox.py",
    "engines/pool.py",
    "engines/request_head.py",
    "engines/response.py",
    "gateway/accounts.py",
    "gateway/allowances.py",
    "gateway/answers.py",
    "gateway/asked.py",
    "gateway/audience.py",
    "gateway/avoided.py",
    "gateway/clock.py",
    "gateway/cost_meter.py",
    "gateway/costs.py",
    "gateway/deadlines.py",
    "gateway/decisions.py",
    "gateway/dialects/base.py",
    "gateway/dialects/chat.py",
    "gateway/dialects/long_bodies.py",
    "gateway/door.py",
    "gateway/endings.py",
    "gateway/error_shapes.py",
    "gateway/event_rate.py",
    "gateway/event_stream.py",
    "gateway/every_answer.py",
    "gateway/follow.py",
    "gateway/follower.py",
    "gateway/guard.py",
    "gateway/http/*.py",
    "gateway/keys.py",
    "gateway/last_minute.py",
    "gateway/log_forms.py",
    "gateway/metrics.py",
    "gateway/models.py",
    "gateway/outlet.py",
    "gateway/prefixes.py",
    "gateway/proxy.py",
    "gateway/relay.py",
    "gateway/reply.py",
    "gateway/runner.py",
    "gateway/tracing.py",
    "gateway/usage.py",
    "gateway/usage_files.py",
    "gateway/verdict_text.py",
    "ledgers/memory.py",
)
"""What is compiled, all of it as one library, so that calls between these modules are calls in C."""
NOT_COMPILED = ("__init__.py", "policy.py")
"""Packages; and classes that pydantic makes, which writes into objects as only Python's own are."""
GROUP = "headworks_compiled"
LIBRARY = f"{GROUP}__mypyc"
"""The compiler's name for it. Each module beside it is a few lines that look into it."""
PURE = "HEADWORKS_PURE"


def sources() -> list[Path]:
    """The files that are compiled."""
    found = (path for pattern in COMPILED for path in sorted(PACKAGE.glob(pattern)))
    return [path for path in found if path.name not in NOT_COMPILED]


def modules() -> list[str]:
    """Their names as modules."""
    return [".".join(("headworks", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in sources()]


def stamp() -> str:
    """What the sources at hand, and this Python, would have to be compiled from."""
    seen = blake2b(SUFFIX.encode(), digest_size=20)
    beside = (PACKAGE / "core" / name for name in NOT_COMPILED)  # what is compiled holds what it gets from there to its types
    for path in (*sources(), *beside):
        text = path.read_bytes()
        seen.update(f"\n{path.relative_to(PACKAGE).as_posix()} {len(text)}\n".encode())
        seen.update(text)
    return seen.hexdigest()


def is_current() -> bool:
    """There are compiled modules, all of them, and they were made of the sources at hand."""
    try:
        return STAMP.read_text() == stamp() and {path.name for path in files().values()} <= set(os.listdir(FOLDER))
    except (OSError, ValueError):
        return False


def files() -> dict[str, Path]:
    """Where each module is, if it is compiled."""
    return {name: FOLDER / f"{name}{SUFFIX}" for name in (LIBRARY, *modules())}


class Finder(MetaPathFinder):
    """Finds the compiled modules by their names, before anybody looks for their sources."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def prefer() -> bool:
    """From here on compiled modules are imported, if there are any that may be. Returns whether."""
    if os.environ.get(PURE) or not is_current():
        return False
    sys.meta_path.insert(0, Finder(files()))
    return True
