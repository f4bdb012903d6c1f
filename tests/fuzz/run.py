"""Fuzzes one target for a while; called by `scripts/fuzz`, which puts atheris on the path.

What is new is kept under `build/fuzz/TARGET`; what broke something is left beside it as `TARGET-crash-…`. Copied into
`tests/fuzz/corpus/TARGET` it is replayed by every run of the tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import atheris  # type: ignore[import-not-found]

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "fuzz"
INPUT_BYTES_MAX = 8_192
INPUT_S_MAX = 5.0
"""Of processor time: a machine that stands still is nobody's fault."""
STILL_S_MAX = 3_600
MEMORY_MB_MAX = 2_048


def main(name: str, seconds: str) -> None:
    with atheris.instrument_imports(include=["headworks", "yaml", "json"]):
        from tests.fuzz.targets import TARGETS, WORDS
    found = BUILD / name
    found.mkdir(parents=True, exist_ok=True)
    words = BUILD / f"{name}.words"
    quoted = [word.replace('"', '\\"') for word in WORDS.get(name, ())]
    words.write_text("".join(f'"{word}"\n' for word in quoted))
    flags = (f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={STILL_S_MAX}", f"-dict={words}")
    flags += (f"-rss_limit_mb={MEMORY_MB_MAX}", f"-artifact_prefix={BUILD}/{name}-", "-print_final_stats=1", "-verbosity=0")
    if name not in WORDS:
        flags = tuple(flag for flag in flags if not flag.startswith("-dict"))
    target = TARGETS[name]

    def one(data: bytes) -> None:
        began_s = time.process_time()
        target(data)
        took_s = time.process_time() - began_s
        assert took_s < INPUT_S_MAX, f"{took_s:.1f} s for {len(data)} bytes"

    atheris.Setup([name, *flags, str(found), str(HERE / "corpus" / name)], one)
    atheris.Fuzz()


def alone(*words: str) -> int:
    """In a group of processes of its own, which is ended with it: the fuzzer leaves without a word to what it has started."""
    child = os.fork()
    if not child:
        os.setsid()
        main(*words)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(alone(*sys.argv[1:]))
