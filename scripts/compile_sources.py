"""Compiles what `headworks.compiled` names, with mypyc and the C compiler of this Python. Called by `scripts/compile`.

The package is copied to `build/compiled`, the modules in it as the compiler is to see them (`native_source.py`). They are
compiled there and put into `src/headworks/_compiled`, with their stamp as the very last thing. What is current is left alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["HEADWORKS_PURE"] = "1"  # what is being made must not run here

from native_source import native

from headworks import compiled

if TYPE_CHECKING:
    from setuptools import Extension
    from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / "build" / "compiled"
LOG = WORK / "log"
OPTIMISED = os.environ.get("HEADWORKS_OPTIMISED", "1")
"""As the C compiler takes it."""
CC = (sysconfig.get_config_var("CC") or "cc").split()[0]
IS_GCC = sys.platform == "linux" and "clang" not in CC
RARE = WORK / "rare.h"
RARE_TEXT = """\
struct _object;
void CPy_AddTraceback(const char *, const char *, int, struct _object *) __attribute__((cold));
void CPy_TypeErrorTraceback(const char *, const char *, int, struct _object *, const char *, struct _object *)
    __attribute__((cold));
void CPy_TypeError(const char *, struct _object *) __attribute__((cold));
void CPy_AttributeError(const char *, const char *, const char *, const char *, int, struct _object *) __attribute__((cold));
"""
"""A third of the code is what happens when an exception passes. Told that it is rare, the compiler puts it elsewhere, and what
runs for each request stands close together (docs/decisions/0056-what-the-edge-costs.md)."""
FLAGS = (
    *("-fvisibility=hidden", "-include", str(RARE)),
    *(("-fno-plt", "-freorder-blocks-and-partition") if IS_GCC else ()),
)
"""Nobody calls into the library by name, so its own calls and constants go through no table that could be redirected."""
ERRORS_SHOWN_MAX = 20
TOOLS = compiled.FOLDER / "tools"
"""What it was made with: other tools make everything anew."""


def main() -> int:
    if "--build" in sys.argv:
        return build()
    if compiled.is_current() and TOOLS.is_file() and TOOLS.read_text() == tools():
        return 0
    missing = what_is_missing()
    if not missing:
        print("compiling (a minute or two)", file=sys.stderr, flush=True)
        prepare()
        with LOG.open("w") as log:
            command = [sys.executable, __file__, "--build"]
            ended = subprocess.call(command, cwd=WORK, stdout=log, stderr=subprocess.STDOUT)
        if ended == 0:
            return 0
        print(*errors(), sep="\n", file=sys.stderr)
        print(f"headworks runs as plain Python: the compiler failed, see {LOG.relative_to(ROOT)}", file=sys.stderr)
        return 1
    print(f"headworks runs as plain Python: {missing}", file=sys.stderr)
    return 0 if "--if-possible" in sys.argv else 1


def errors() -> list[str]:
    """What the compilers called one, at most a screen of them."""
    return [line for line in LOG.read_text().splitlines() if "error" in line.lower()][:ERRORS_SHOWN_MAX]


def tools() -> str:
    """The compiler, and what it is told."""
    told = "".join((HERE / name).read_text() for name in ("compile_sources.py", "native_source.py"))
    return f"mypy {version('mypy')}, -O{OPTIMISED}\n{told}"


def what_is_missing() -> str:
    """In one sentence, or nothing."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return "mypy and setuptools are not installed"
    if shutil.which(CC) is None:
        return f"there is no C compiler ({CC})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not installed (Python.h)"
    return ""


def prepare() -> None:
    """A copy of the whole package, for its types; what is compiled in it as the compiler is to see it."""
    shutil.rmtree(WORK, ignore_errors=True)
    stamp = compiled.stamp()
    shutil.copytree(compiled.PACKAGE, WORK / "headworks", ignore=shutil.ignore_patterns("__pycache__", compiled.FOLDER.name))
    for name in names():
        file = WORK / name
        file.write_text(native(file.read_text()))
    (WORK / compiled.STAMP.name).write_text(stamp)
    RARE.write_text(RARE_TEXT)


def names() -> list[str]:
    """The files that are compiled, in the copy."""
    return [f"headworks/{path.relative_to(compiled.PACKAGE).as_posix()}" for path in compiled.sources()]


def build() -> int:
    """Python to C to modules, in the copy, which is the working directory."""
    from setuptools import Distribution  # first: mypyc looks at once whether it is there
    from mypyc.build import mypycify  # isort: skip

    extensions = mypycify(
        ["--config-file", str(ROOT / "pyproject.toml"), *names()],
        opt_level=OPTIMISED,
        debug_level="0",
        multi_file=True,
        target_dir="c",
        group_name=compiled.GROUP,
    )
    made = Distribution({"name": compiled.GROUP, "ext_modules": extensions, "cmdclass": {"build_ext": in_parallel()}})
    made.get_command_obj("build_ext").build_lib = "built"
    made.run_command("build_ext")
    shutil.rmtree(compiled.FOLDER, ignore_errors=True)
    compiled.FOLDER.mkdir()
    for file in Path("built").rglob(f"*{compiled.SUFFIX}"):
        shutil.copy(file, compiled.FOLDER / ".".join(file.relative_to("built").parts))
    TOOLS.write_text(tools())
    shutil.copy(compiled.STAMP.name, compiled.STAMP)
    return 0


def in_parallel() -> type[build_ext]:
    """The library is one extension of many files: as many C compilers at once as there are processors."""
    from setuptools.command.build_ext import build_ext

    class Parallel(build_ext):
        def build_extension(self, extension: Extension) -> None:
            def compile_one(source: str) -> str:
                included, flags = extension.include_dirs, [*extension.extra_compile_args, *FLAGS]
                return self.compiler.compile([source], self.build_temp, include_dirs=included, extra_postargs=flags)[0]

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                extension.extra_objects = list(pool.map(compile_one, extension.sources))
            extension.sources = []
            super().build_extension(extension)

    return Parallel


if __name__ == "__main__":
    sys.exit(main())
