"""Which small changes to the core would no test notice? Mutants (`mutants.py`), each in a process of its own, judged by tests.

pytest collects once. Then every test runs once on sources that mark each statement, so that it is known who comes past what.
For a mutant the process forks, its functions get the changed code, and those tests run, the quickest and those that noticed
most first, until one fails. Which mutants are asked about, and in which order, is decided by the seed alone; results are kept
by what the mutant's function says: a run that was stopped goes on, and a function that was changed is asked about again.

Decision 68 says why it is ours. Explained survivors stand in `tests/mutation/survivors.txt`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mutants import Mutant, Source, with_hits
from transplant import executed, transplant

from headworks.testing import servers

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "headworks" / "core"
OF = (*sorted(path.stem for path in CORE.glob("book*.py")), "life", "fair", "level", "queue", "checks")
TESTS = (
    *("tests/core", "tests/ledgers/test_memory.py", "tests/ledgers/test_planted.py", "tests/ledgers/test_journal.py"),
    *("tests/ledgers/test_journal_ended.py", "tests/ledgers/test_history.py", "tests/ledgers/test_shares.py"),
    *("tests/properties/test_book_oracle.py", "tests/properties/test_keys.py", "tests/ledgers/test_valkey_histories.py"),
)
SURVIVORS = ROOT / "tests" / "mutation" / "survivors.txt"
RESULTS = ROOT / "build" / "mutation"
KILLED_MIN = 0.9
CPU_S = 2.0
"""A test that takes so much, and twenty times what it takes otherwise, goes on for ever."""
KILLERS_MAX = 4
MEMORY_BYTES = 2 << 30
WALL_S = 300
"""A test that takes so much waits for ever, or the machine has no time for it: nobody knows."""
KILLED, SURVIVED, TIMED_OUT, UNTESTED, UNJUDGED = "killed", "survived", "timed out", "untested", "not judged"
ALIVE = (SURVIVED, UNTESTED, UNJUDGED)


@dataclasses.dataclass(slots=True)
class Seen:
    """A test: how long it takes and what it comes past."""

    cpu_s: float
    hits: dict[str, set[int]]
    """By file, the numbers of its statements."""


class Judge:
    """A pytest plugin that runs mutants where the tests would run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sources = {name: Source(f"{name}.py", (CORE / f"{name}.py").read_text()) for name in OF}
        self.modules = {name: importlib.import_module(f"headworks.core.{name}") for name in OF}
        self.seen: dict[str, Seen] = {}
        self.killers: dict[str, list[str]] = {}
        """By function, the tests that noticed something in it, the latest first."""
        self.kills: dict[str, int] = {}
        """By test, how often."""
        self.items: dict[str, pytest.Item] = {}
        self.failed = False
        self.results: dict[str, dict[str, Any]] = {}
        self.chosen: list[Mutant] = []
        self.explained = explained()
        self.servers: list[servers.Server] = []
        """One for each job, for tests that compare with the script of a shared ledger: the other writing of the book."""
        self.free: list[int] = []
        """Jobs nobody works at."""

    # pytest

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Any part of a test may be the one that fails."""
        self.failed = self.failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests once."""
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        self.free = list(range(self.options.jobs))
        with ExitStack() as stack:
            if not servers.why_not():
                self.servers = [stack.enter_context(servers.single()) for _ in self.free]
            self._look()
            self._read()
            self._judge_all([mutant for mutant in self.chosen if self._is_open(mutant)])
        return True

    def _judge_all(self, waiting: list[Mutant]) -> None:
        began_s = time.monotonic()
        running: dict[int, tuple[Mutant, Callable[[int], dict[str, Any]]]] = {}
        while running or waiting:
            if self.options.limit_s and time.monotonic() - began_s > self.options.limit_s:
                waiting.clear()
            while waiting and len(running) < self.options.jobs:
                mutant = waiting.pop(0)
                tests = self._tests_of(mutant)
                if not tests:
                    self._note(mutant, {"outcome": UNTESTED, "tests": 0})
                    continue
                running.update([self._start(mutant, tests)])
            if running:
                child, status, used = os.wait3(0)
                mutant, read = running.pop(child)
                self._note(mutant, read(status) | {"cpu_s": round(used.ru_utime + used.ru_stime, 2)})

    # who comes past what

    def _look(self) -> None:
        """Run what is not known yet once, on sources that mark where they are. In a child: this process stays as it is."""
        path = RESULTS / "seen.json"
        sources = _sha(*(CORE / f"{name}.py" for name in OF))
        kept = json.loads(path.read_text()) if path.exists() else {}
        known = kept.get("files", {}) if kept.get("sources") == sources else {}
        by_file: dict[str, list[str]] = {}
        for name in self.items:
            by_file.setdefault(name.partition("::")[0], []).append(name)
        shas = {name: _sha(ROOT / name) for name in by_file}
        files = {name: known[name] for name, sha in shas.items() if known.get(name, {}).get("sha") == sha}
        todo = [name for name in by_file if name not in files]
        for name, tests in self._seen_anew({name: by_file[name] for name in todo}).items():
            files[name] = {"sha": shas[name], "tests": tests}
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"sources": sources, "files": files}))
        for file in files.values():
            for test, (cpu_s, hits) in file["tests"].items():
                if cpu_s >= 0.0:
                    self.seen[test] = Seen(cpu_s, {name: set(numbers) for name, numbers in hits.items()})
                else:
                    print(f"fails on the source as it is, and judges nothing: {test}", file=sys.stderr)

    def _seen_anew(self, files: dict[str, list[str]]) -> dict[str, Any]:
        """Of each test how long it takes (less than nothing: it fails) and what it comes past."""
        found: dict[str, Any] = {}
        pending, running = list(files), {}
        while pending or running:
            while pending and len(running) < self.options.jobs:
                name = pending.pop()
                child, read = self._fork(lambda name=name: self._marked_run(files[name]))
                running[child] = (name, read)
            child, _ = os.wait()
            name, read = running.pop(child)
            said = read()
            if said:
                found[name] = json.loads(said)
            print(f"seen: {name}" if said else f"could not be run, and judges nothing: {name}", file=sys.stderr)
        return found

    def _marked_run(self, tests: list[str]) -> str:
        marks = {name: bytearray(len(source.statements)) for name, source in self.sources.items()}
        for name, source in self.sources.items():
            self.modules[name].__dict__["_hits_"] = marks[name]
            fresh = executed(self.modules[name], with_hits(source), {"_hits_": marks[name]})
            transplant(self.modules[name].__dict__, fresh, ())
        found = {}
        for test in tests:
            for one in marks.values():
                one[:] = bytes(len(one))
            begun_s = time.process_time()
            signal.alarm(WALL_S)
            self._run(test)
            cpu_s = time.process_time() - begun_s
            hits = {name: [number for number, hit in enumerate(one) if hit] for name, one in marks.items() if any(one)}
            found[test] = (-1.0 if self.failed else cpu_s, hits)
            self.failed = False
        return json.dumps(found)

    def _run(self, test: str) -> None:
        item = self.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    # choosing

    def _read(self) -> None:
        every = [mutant for source in self.sources.values() for mutant in source.mutants]
        if self.options.only:
            every = [mutant for mutant in every if self.options.only in mutant.name]
        every.sort(key=lambda mutant: hashlib.sha256(f"{self.options.seed} {mutant.name}".encode()).digest())
        self.chosen = every[: self.options.sample or None]
        if self.options.results.exists():
            for line in self.options.results.read_text().splitlines():
                result = json.loads(line)
                self.results[result["mutant"]] = result
                self._prefer(result)

    def _is_open(self, mutant: Mutant) -> bool:
        result = self.results.get(mutant.name)
        if result is None or result["digest"] != mutant.digest:
            return not self.options.again
        unexplained = bool(self.options.again) and result["outcome"] in ALIVE and mutant.name not in self.explained
        return unexplained or result["outcome"] == UNJUDGED

    def _prefer(self, result: dict[str, Any]) -> None:
        if result.get("by"):
            place = result["mutant"].partition(":")[0]
            first = self.killers.setdefault(place, [])
            first[:] = [result["by"], *(one for one in first if one != result["by"])][:KILLERS_MAX]
            self.kills[result["by"]] = self.kills.get(result["by"], 0) + 1

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Those that come past it. Outside of functions: all of them, since others may have imported what is given a value."""
        file = mutant.name.partition(".")[0]
        if not mutant.targets:
            found = [test for test, seen in self.seen.items() if mutant.statement in seen.hits.get(file, ())]
        else:
            found = list(self.seen)
        found.sort(key=self._price)
        first = [test for test in self.killers.get(mutant.name.partition(":")[0], ()) if test in set(found)]
        ordered = [*first, *(test for test in found if test not in set(first))]
        return list(self._within(ordered)) if self.options.cpu_s else ordered

    def _price(self, test: str) -> float:
        """Of what it may notice: little for the quick, for those that come past few files, and for those that noticed much."""
        seen = self.seen[test]
        return (seen.cpu_s + 0.02) * len(seen.hits) ** 2 / (1 + self.kills.get(test, 0))

    def _within(self, tests: list[str]) -> Iterator[str]:
        left_s = self.options.cpu_s
        for test in tests:
            left_s -= self.seen[test].cpu_s
            if left_s < 0.0:
                return
            yield test

    # judging

    def _start(self, mutant: Mutant, tests: list[str]) -> tuple[int, tuple[Mutant, Callable[[int], dict[str, Any]]]]:
        child, read = self._fork(lambda: self._judged(mutant, tests))
        return child, (mutant, lambda status: outcome_of(status, read(), len(tests)))

    def _judged(self, mutant: Mutant, tests: list[str]) -> str:
        file = mutant.name.partition(".")[0]
        module, source = self.modules[file], self.sources[file]
        mutant.swap()
        try:
            fresh = executed(module, source.tree, {})
            transplant(module.__dict__, fresh, mutant.targets)
        except Exception as error:  # it cannot even be loaded
            return json.dumps({"outcome": KILLED, "tests": 0, "by": "", "how": f"{type(error).__name__}: {error}"[:200]})
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for test in tests:
            signal.setitimer(signal.ITIMER_PROF, CPU_S + 20 * self.seen[test].cpu_s)
            signal.alarm(WALL_S)
            self._run(test)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            if self.failed:
                return json.dumps({"outcome": KILLED, "tests": len(tests), "by": test})
        return json.dumps({"outcome": SURVIVED, "tests": len(tests), "by": ""})

    def _fork(self, work: Callable[[], str]) -> tuple[int, Callable[[], str]]:
        """A child that does it. What it says is read once it has ended; it prints nothing, and its files go with it."""
        folder, job = Path(tempfile.mkdtemp(prefix="mutation-")), self.free.pop()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(nothing, number)
                _work_in(next(iter(self.items.values())).config, folder / "files")
                if self.servers:
                    servers.single = _emptied(self.servers[job])  # type: ignore[assignment]
                (folder / "said").write_text(work())
                code = 0
            finally:
                os._exit(code)

        def read() -> str:
            said = folder / "said"
            text = said.read_text() if said.exists() else ""
            shutil.rmtree(folder, ignore_errors=True)
            self.free.append(job)
            return text

        return child, read

    def _note(self, mutant: Mutant, result: dict[str, Any]) -> None:
        line = {"mutant": mutant.name, "digest": mutant.digest, "line": mutant.line} | result
        self.results[mutant.name] = line
        self._prefer(line)
        with self.options.results.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if line["outcome"] in ALIVE:
            print(f"{line['outcome']}: {mutant.name} (line {mutant.line})", file=sys.stderr)


def outcome_of(status: int, said: str, tests: int) -> dict[str, Any]:
    """What became of a mutant, by how its process ended. What else than its own time ended is not noticed."""
    if os.WIFSIGNALED(status):
        return {"outcome": TIMED_OUT if os.WTERMSIG(status) == signal.SIGPROF else UNJUDGED, "tests": tests, "by": ""}
    return json.loads(said or '{"outcome": "killed", "by": "it ended the process"}')  # type: ignore[no-any-return]


def _emptied(server: servers.Server) -> Callable[..., Any]:
    @contextmanager
    def single(*_: str) -> Iterator[servers.Server]:
        server.ask("FLUSHALL")
        yield server

    return single


def _work_in(config: pytest.Config, folder: Path) -> None:
    """Temporary files of its tests go there."""
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = folder, None


def _sha(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


# saying it


def explained() -> dict[str, str]:
    """Survivors and why nothing can, or need, notice them."""
    lines = SURVIVORS.read_text().splitlines() if SURVIVORS.exists() else []
    found, why = {}, ""
    for line in lines:
        if line.startswith("# "):
            why = line[2:]
        elif line.strip():
            found[line.strip()] = why
    return found


def report(judge: Judge, as_json: bool, killed_min: float) -> int:
    """What came of those that were chosen."""
    found = [(one, judge.results.get(one.name)) for one in judge.chosen]
    asked = [result for one, result in found if result is not None and result["digest"] == one.digest]
    alive = [one for one in asked if one["outcome"] in ALIVE]
    bare = [one["mutant"] for one in alive if one["mutant"] not in judge.explained]
    ratio = 1 - len(alive) / len(asked) if asked else 0.0
    said = {
        "mutants": sum(len(source.mutants) for source in judge.sources.values()),
        "asked": len(asked),
        "killed": len(asked) - len(alive),
        "killed_ratio": round(ratio, 4),
        "survived": len(alive),
        "explained": len(alive) - len(bare),
        "unexplained": bare,
        "cpu_s": round(sum(one.get("cpu_s", 0.0) for one in asked)),
    }
    if as_json:
        print(json.dumps(said, ensure_ascii=False, indent=1))
    else:
        print(f"{said['killed']} of {said['asked']} killed ({ratio:.1%}); of {said['mutants']} in all. Unexplained:")
        print(*bare, sep="\n")
    return 0 if ratio >= killed_min and not bare else 1


def main() -> int:
    """Run, and say it."""
    parser = argparse.ArgumentParser(prog="scripts/mutation", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, default=0, help="so many of all, by the seed; 0: every one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants with this in their name")
    parser.add_argument("--again", action="store_true", help="only survivors nobody has explained: there may be new tests")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cpu-s", type=float, default=0.0, help="tests of so much time for each, the likeliest first; 0: all")
    parser.add_argument("--limit-s", type=float, default=0.0, help="begin none after so long")
    parser.add_argument("--results", type=Path, default=RESULTS / "results.jsonl")
    parser.add_argument("--killed-min", type=float, default=KILLED_MIN)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # and the servers end
    judge = Judge(options)
    code = pytest.main(["-s", "-q", "-n0", *TESTS], plugins=[judge])
    if code not in (0, 5):
        print(f"pytest could not collect ({code})", file=sys.stderr)
        return 2
    return report(judge, options.json, options.killed_min)


if __name__ == "__main__":
    sys.exit(main())
