"""What can be checked about the source is checked here, from its syntax trees (design 1, 10).

Old exceptions stand in lists that may only shrink: an entry that is not needed any more fails as well.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headworks.core.reasons import REASONS
from headworks.gateway.headers_table import READ, WRITTEN
from headworks.gateway.metrics_table import METRICS, PREFIX, WITHOUT_SOURCE

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headworks"
PYTHON = sorted(
    path
    for folder in ("src", "tests", "bench", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if ".build" not in path.parts  # what benches compare with is installed there
)
CORE = sorted((SOURCE / "core").glob("*.py"))

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MEDIAN_MAX = 10
CORE_LINES_MAX = 17_218
PUBLIC_PORT_LINES_MAX = 1_623
"""May only shrink: a port that can be read in one sitting would have 1,200."""
LONG_FILES = {
    "tests/engines/test_fake_engine.py": 578,
}
"""Files above the limit, and how long they may be at most."""
LONG_FUNCTIONS: dict[str, int] = {}

BELOW = {
    "cli": {"cli", "gateway", "tools", "testing", "ledgers", "engines", "sim", "config", "logs", "core"},
    "gateway": {"gateway", "ledgers", "engines", "config", "logs", "core"},
    "tools": {"tools", "ledgers", "engines", "sim", "config", "logs", "core"},
    "testing": {"testing", "ledgers", "engines", "sim", "config", "core"},
    "ledgers": {"ledgers", "config", "core"},
    "engines": {"engines", "config", "core"},
    "sim": {"sim", "config", "core"},
    "config": {"config", "core"},
    "logs": {"logs"},
    "core": {"core"},
    "client": {"client"},
}
"""Who may import whom."""
CORE_BANS = {"asyncio", "time", "random", "os", "socket", "logging", "threading", "datetime", "pathlib", "subprocess", "io"}
CLOCKS = {"time", "monotonic", "perf_counter", "clock_gettime", "time_ns", "monotonic_ns", "process_time", "now", "utcnow"}
CLOCK_READERS = {"clock.py"}

UNIT = re.compile(r".*_(s|ratio|tokens|bytes|requests|per_s|per_mtoken|per_day|per_h)(_(max|min|mean|first|open))*")
"""The unit, then what qualifies it: `wait_s_max`."""
UNITLESS_FLOATS = {
    # a weight, a probability, or a value whose unit stands beside it
    *("ClassPolicy.share", "TenantPolicy.share", "PoolPolicy.over_commit", "PoolPolicy.quantile"),
    *("Verdict.value", "Verdict.limit", "ShownVerdict.value", "ShownVerdict.limit", "Reading.value", "Histogram.sum"),
    # the names of a protocol, of an option, of a distribution's parameter
    *("Lengths.sigma", "Fault.ratio"),
    *("Plan.seconds", "Plan.rate_times", "Figures.seconds", "FakeSettings.speed", "Source.bytes_per_token"),
    # an engine's own counters and gauges, which its page states as decimals
    *("EngineSample.running", "EngineSample.waiting", "EngineSample.preemptions_total", "EngineFigures.preemptions"),
    *("EngineSample.prompt_tokens_total", "EngineSample.generation_tokens_total"),
}
"""May only shrink."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def text_of_tests() -> str:
    return "\n".join(path.read_text() for path in PYTHON if "tests" in path.parts and path.name != "test_tidy.py")


@cache
def text_of_docs() -> str:
    return "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def value_classes(path: Path) -> Iterator[ast.ClassDef]:
    """Dataclasses, named tuples and structs: classes whose annotations are fields."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            marks = ast.unparse(node).split("class ", 1)[0] + " ".join(ast.unparse(base) for base in node.bases)
            if any(word in marks for word in ("dataclass", "NamedTuple", "Struct", "Section")):
                yield node


# layers


@pytest.mark.parametrize("layer", BELOW)
def test_imports_point_down_only(layer: str) -> None:
    found = []
    for path in sorted((SOURCE / layer).rglob("*.py")):
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] == "headworks" and len(parts) > 1 and parts[1] in BELOW and parts[1] not in BELOW[layer]:
                found.append(f"{relative(path)}:{line} imports {name}")
    assert found == []


def test_every_package_has_a_place_in_the_layers() -> None:
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == BELOW.keys()


def test_core_has_no_io_no_clock_and_no_randomness() -> None:
    found = [
        f"{relative(path)}:{line} imports {name}"
        for path in CORE
        for name, line in imports(path)
        if name.split(".")[0] in CORE_BANS
    ]
    outside = {name.split(".")[0] for path in CORE for name, _ in imports(path)} - {"headworks"} - set(sys.stdlib_module_names)
    assert found == []
    assert outside == set(), "the core has no dependency"
    printing = [
        f"{relative(path)}:{node.lineno}"
        for path in CORE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "open", "input")
    ]
    assert printing == []


def test_core_iterates_over_no_set() -> None:
    """A set's order is not that of the program: what depends on it is not the same twice."""
    assert [place for path in CORE for place in set_iterations(path)] == []


def set_iterations(path: Path) -> Iterator[str]:
    names = {
        ast.unparse(node.target)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.AnnAssign) and re.match(r"(frozen)?set\b", ast.unparse(node.annotation))
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.For | ast.comprehension) and is_set(node.iter, names):
            yield f"{relative(path)}:{node.iter.lineno} iterates over {ast.unparse(node.iter)}"


def is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp) or ast.unparse(node) in names


@pytest.mark.parametrize("layer", ["gateway", "engines", "ledgers"])
def test_one_file_reads_the_clock(layer: str) -> None:
    """Everything else is given its clock, so that a test can give it another."""
    found = [
        f"{relative(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((SOURCE / layer).rglob("*.py"))
        if path.name not in CLOCK_READERS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS and ast.unparse(node.value) in ("time", "datetime", "loop")
    ]
    assert found == []


# names and values


def test_float_fields_carry_their_unit() -> None:
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in value_classes(path):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and re.fullmatch(r"float( \| None)?", ast.unparse(field.annotation)):
                    name = ast.unparse(field.target)
                    if UNIT.fullmatch(name) is None:
                        found.add(f"{node.name}.{name}")
    assert found == UNITLESS_FLOATS, "name its unit; or, if one is gone, take it out of the list"


UNANSWERED: set[str] = set()
"""Reasons of what is not in force yet, which no test knows. May only shrink."""

PUBLIC = ("types", "commands", "events", "effects", "reasons")
VARIABLES = {"answer", "command", "event", "effect", "sample", "record", "reservation"}
"""What instances of public types are called, beside the types' own names."""


ALLOWED_ASSIGNMENTS = {"sim/batching.py: execution.inside"}
"""An object of another type under the same name."""


def test_public_types_are_assigned_to_in_their_own_module_only() -> None:
    names, fields = set(VARIABLES), set()
    for module in PUBLIC:
        for node in value_classes(SOURCE / "core" / f"{module}.py"):
            names.add(re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).lower())
            fields |= {ast.unparse(field.target) for field in node.body if isinstance(field, ast.AnnAssign)}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent.name == "core" and path.stem in PUBLIC:
            continue
        for target in assigned(path):
            owner = ast.unparse(target.value).rpartition(".")[2]
            if target.attr in fields and owner in names:
                found.append(f"{path.relative_to(SOURCE).as_posix()}: {ast.unparse(target)}")
    assert set(found) == ALLOWED_ASSIGNMENTS


def assigned(path: Path) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree(path)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (part for part in parts if isinstance(part, ast.Attribute))


def test_no_bare_except() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in PYTHON
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    bare = [
        relative(path) for path in SOURCE.rglob("*.py") if path.read_text().strip() and ast.get_docstring(tree(path)) is None
    ]
    assert bare == []


# lengths


def test_files_are_short() -> None:
    lengths = {relative(path): path.read_text().count("\n") for path in PYTHON}
    held(lengths, LONG_FILES, FILE_LINES_MAX)


def test_functions_are_short() -> None:
    lengths = {f"{relative(path)}:{one.name}": one.end_lineno - one.lineno + 1 for path in PYTHON for one in functions(path)}  # type: ignore[operator]
    held(lengths, LONG_FUNCTIONS, FUNCTION_LINES_MAX)
    in_source = [length for name, length in lengths.items() if name.startswith("src/")]
    assert statistics.median(in_source) <= FUNCTION_LINES_MEDIAN_MAX


def held(lengths: dict[str, int], exceptions: dict[str, int], limit: int) -> None:
    over = {name: length for name, length in lengths.items() if length > exceptions.get(name, limit)}
    assert over == {}, "shorten it; the list of exceptions may only shrink"
    needless = [name for name in exceptions if lengths.get(name, 0) <= limit]
    assert needless == [], "short enough now: take it out of the list"


def test_the_core_keeps_its_budget() -> None:
    assert sum(path.read_text().count("\n") for path in CORE) <= CORE_LINES_MAX


def test_the_public_port_keeps_its_budget() -> None:
    assert sum(path.read_text().count("\n") for path in (SOURCE / "gateway" / "http").glob("*.py")) <= PUBLIC_PORT_LINES_MAX


# tables, docs and tests know of each other


def test_every_reason_stands_in_the_docs_and_in_a_test() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert [code for code in REASONS if f"`{code}`" not in page] == []
    untested = {code for code in REASONS if not re.search(rf"\b{code}\b", text_of_tests())}
    assert untested == UNANSWERED, "a reason nobody answers with yet needs no test; any other does"
    tables = ("reasons.py", "metrics_table.py", "readings.py")
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name not in tables)
    assert [code for code in UNANSWERED if f'"{code}"' in source] == [], "it is in use: take it out and test it"


def test_every_metric_stands_in_the_docs_and_in_a_test() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert [name for name in METRICS if f"`{PREFIX}{name}`" not in page] == []
    assert [name for name in METRICS if name not in text_of_tests()] == []


def test_every_metric_that_is_exposed_is_fed_by_something() -> None:
    gateway = "\n".join(path.read_text() for path in (SOURCE / "gateway").rglob("*.py") if path.name != "metrics_table.py")
    assert {name for name in METRICS if f'"{name}"' not in gateway} <= WITHOUT_SOURCE


def test_every_header_stands_in_the_docs_and_in_a_test() -> None:
    page, tests = (ROOT / "docs" / "headers.md").read_text(), text_of_tests().lower()
    assert [row.name for row in (*READ, *WRITTEN) if f"`{row.name}`" not in page] == []
    assert [row.name for row in (*READ, *WRITTEN) if row.name.lower() not in tests] == []


def test_every_header_the_gateway_names_stands_in_the_table() -> None:
    """Framing and content belong to HTTP; everything else that is read or written by name is ours to explain."""
    framing = {"content-type", "content-encoding", "content-length", "cache-control", "keep-alive", "transfer-encoding"}
    engine = {"openai-processing-ms", "openai-version"}
    named = set()
    for path in (SOURCE / "gateway").glob("*.py"):
        named |= {name.lower() for name in re.findall(r'b"([A-Za-z]+(?:-[A-Za-z]+)+)"', path.read_text())}
    known = {row.name.lower() for row in (*READ, *WRITTEN)}
    assert named - framing - engine - known == set()
    assert known - named - {"authorization", "traceparent", "tracestate"} == set(), (
        "in the table, and nobody reads or writes it"
    )


def test_generated_pages_are_current() -> None:
    found = subprocess.run(
        [sys.executable, "scripts/make_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_links_in_the_docs_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{relative(page)} → {target}")
    assert broken == []


def test_every_guarantee_names_tests_that_exist() -> None:
    known = [one.name for path in PYTHON for one in functions(path)]
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(test_[A-Z]\w+)", page)
    assert named
    assert [name for name in named if not any(one.startswith(name) for one in known)] == []
    assert [path for path in re.findall(r"`(tests/[\w./]+)`", page) if not (ROOT / path).exists()] == []


FORBIDDEN = ("/work" + "/", "/home" + "/", "/root" + "/", ".lib" + "rary", "../sha" + "red")
KEPT = {".py", ".md", ".yaml", ".toml", ".c", ".h", ""}


def test_nothing_names_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in KEPT and path.is_file():
            content = path.read_text(errors="replace")
            found += [f"{name}: {word}" for word in FORBIDDEN if word in content]
    assert found == []
