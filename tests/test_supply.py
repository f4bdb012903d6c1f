"""What is installed, and what is shipped: the lock, the bill of materials, the wheel against the tree (decision 54)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
EXTRAS = ["valkey", "top", "otel", "envoy", "jwt"]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MAKE = script("make_sbom")


def locked() -> Iterator[tuple[Requirement, list[str]]]:
    """Each entry of the lock with its hashes."""
    for entry in LOCK.replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.startswith("#"):
            text, *hashes = re.split(r"\s+--hash=", entry.strip())
            yield Requirement(text), hashes


def asked_of_a_user() -> list[Requirement]:
    """What pyproject.toml asks for: the wheel's own words, so that the installed metadata need not be this tree's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


# the lock


def test_every_entry_of_the_lock_is_one_version_with_hashes() -> None:
    entries = list(locked())
    assert len(entries) > 30
    for requirement, hashes in entries:
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_the_lock_names_no_place_to_take_it_from() -> None:
    assert [word for word in ("://", "--index", "--find-links", "--extra-index", " @ ") if word in LOCK] == []


def test_the_lock_has_what_the_project_asks_for_in_versions_it_takes() -> None:
    versions = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one, _ in locked()}
    missing = [one for one in asked_of_a_user() if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"))]
    assert missing == [], "run scripts/lock"


def test_the_lock_has_all_that_is_installed_for_it_here() -> None:
    """So `--require-hashes` finds nothing without one: what is needed by what is needed is in it as well."""
    needed = MAKE.components(sys.path, EXTRAS).keys() - {"headworks"}
    assert needed - {canonicalize_name(one.name) for one, _ in locked()} == set(), "run scripts/lock"


def test_the_image_installs_from_the_lock_and_nothing_beside_it() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    installs = re.findall(r"/opt/headworks/bin/pip install ([^\n&]+)", text)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0] and "requirements.lock" in installs[0]
    assert "--no-deps" in installs[1] and ".whl" in installs[1]


# the bill


def test_the_bill_has_each_package_once_and_says_what_needs_what() -> None:
    bill = MAKE.bill(MAKE.components(sys.path, EXTRAS))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    named = [one["name"] for one in bill["components"]]
    assert named == sorted(set(named)) and "headworks" not in named
    assert {"httptools", "pydantic-core", "hiredis", "textual", "opentelemetry-proto"} <= set(named), (
        "extras, and what they need"
    )
    assert {"pytest", "ruff", "mypy"} & set(named) == set(), "what is for development is no part of it"
    known = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {one["ref"] for one in bill["dependencies"]} == known
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} == known - {
        bill["metadata"]["component"]["bom-ref"]
    }
    assert [one["name"] for one in bill["components"] if not one.get("licenses")] == []


def test_two_bills_of_one_environment_are_the_same_and_of_another_extra_are_not() -> None:
    first, second = (json.dumps(MAKE.bill(MAKE.components(sys.path, EXTRAS))) for _ in range(2))
    fewer = MAKE.bill(MAKE.components(sys.path, []))
    assert first == second
    assert fewer["serialNumber"] != json.loads(first)["serialNumber"]
    assert "hiredis" not in {one["name"] for one in fewer["components"]}


def test_a_bill_that_would_not_be_whole_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "headworks-9.9.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.4\nName: headworks\nVersion: 9.9\nRequires-Dist: nowhere-to-be-found\n")
    with pytest.raises(MAKE.Missing, match="nowhere-to-be-found is not installed here"):
        MAKE.components([str(tmp_path)], [])


# the audit


def audit_said(tmp_path: Path, packages: list[dict[str, Any]]) -> tuple[int, str]:
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"dependencies": packages, "fixes": []}))
    ran = subprocess.run(
        [sys.executable, "scripts/audit_said.py", str(found)], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    return ran.returncode, ran.stdout


def test_an_audit_is_red_for_what_is_weak_and_not_green_for_what_was_not_looked_at(tmp_path: Path) -> None:
    sound = {"name": "sound", "version": "1.0", "vulns": []}
    weak = {"name": "weak", "version": "1.0", "vulns": [{"id": "CVE-0000-1", "fix_versions": ["1.1"], "aliases": []}]}
    unseen = {"name": "unseen", "skip_reason": "not on the index"}
    assert audit_said(tmp_path, [sound]) == (0, "1 packages looked at, 0 known weaknesses\n")
    assert audit_said(tmp_path, [sound, weak])[0] == 1
    assert "weak 1.0: CVE-0000-1, fixed in 1.1" in audit_said(tmp_path, [weak])[1]
    assert audit_said(tmp_path, [sound, unseen])[0] == 2
    assert audit_said(tmp_path, [unseen]) == (2, "not audited: pip-audit reached no data about any package\n")
    assert audit_said(tmp_path, [])[0] == 2


# the wheel


def tracked() -> dict[str, bytes]:
    """What a wheel is to have: the files of the package that are not ignored, as they are."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src/headworks"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return {path.relative_to(ROOT / "src").as_posix(): path.read_bytes() for path in paths if path.is_file()}


def test_the_wheel_is_the_tree_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the wheel is made without a network, so its builder has to be there")
    environment = {name: value for name, value in os.environ.items() if name != "HEADWORKS_WHEEL"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), "plain Python, for every platform"
    with zipfile.ZipFile(wheel) as opened:
        inside = {name: opened.read(name) for name in opened.namelist()}
    package = {name: content for name, content in inside.items() if name.startswith("headworks/")}
    beside = {name.partition(".dist-info/")[2] for name in inside.keys() - package.keys()}
    expected = tracked()
    assert package.keys() == expected.keys()
    assert [name for name in expected if package[name] != expected[name]] == []
    assert beside == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
