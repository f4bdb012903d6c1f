"""A bill of materials (CycloneDX 1.6, JSON): headworks and all that is installed for it, from the packages' own metadata.

It has what is there, not what could be: markers are those of the Python that runs this, versions the installed ones. Nothing
in it changes from run to run, so two environments are the same where their bills are. Called by `scripts/sbom`.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "headworks"
EXTRAS = ("valkey", "top", "otel")
LICENSE_NAME_CHARACTERS_MAX = 60
"""Old metadata has whole licences in this field: those are named by their classifiers instead."""


@dataclass(slots=True)
class Component:
    distribution: Distribution
    extras: set[str] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)


class Missing(Exception):
    """A package that the metadata asks for is not installed, so the bill would not be whole."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes a bill of materials to standard output.")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="which extras of headworks are part of it, with commas")
    parser.add_argument("--at", help="the site-packages of another environment; markers stay those of this Python")
    asked = parser.parse_args(arguments)
    try:
        found = components([asked.at] if asked.at else sys.path, [extra for extra in asked.extras.split(",") if extra])
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    print(json.dumps(bill(found), indent=2, ensure_ascii=False))
    return 0


def components(path: Sequence[str], extras: Sequence[str]) -> dict[str, Component]:
    """headworks and what it needs, and what that needs, with the extras that each is asked for with."""
    installed: dict[str, Distribution] = {}
    for one in distributions(path=list(path)):
        installed.setdefault(canonicalize_name(one.name), one)  # the first on the path is the one that is imported
    found: dict[str, Component] = {}
    waiting = [(NAME, frozenset(extras))]
    while waiting:
        name, asked = waiting.pop()
        if name not in installed:
            raise Missing(f"{name} is not installed here")
        component = found.setdefault(name, Component(installed[name]))
        fresh = {"", *asked} - component.extras
        component.extras |= fresh
        for needed in needed_by(component.distribution, fresh):
            component.needs.add(canonicalize_name(needed.name))
            waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return found


def needed_by(distribution: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def bill(found: dict[str, Component]) -> dict[str, Any]:
    parts = [described(found[name]) for name in sorted(found) if name != NAME]
    depends = [
        {"ref": reference(one.distribution), "dependsOn": sorted(reference(found[name].distribution) for name in one.needs)}
        for _, one in sorted(found.items())
    ]
    itself = described(found[NAME]) | {"type": "application"}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([itself, parts, depends], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": itself},
        "components": parts,
        "dependencies": depends,
    }


def described(component: Component) -> dict[str, Any]:
    one = component.distribution
    entry = {"type": "library", "bom-ref": reference(one), "name": canonicalize_name(one.name), "version": one.version}
    return entry | {"purl": reference(one)} | ({"licenses": named} if (named := licenses(one)) else {})


def reference(distribution: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(distribution.name)}@{distribution.version}"


def licenses(distribution: Distribution) -> list[dict[str, Any]]:
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    text = (metadata.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= LICENSE_NAME_CHARACTERS_MAX:
        return [{"license": {"name": text}}]
    classified = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License :: ")]
    return [{"license": {"name": line.rpartition(" :: ")[2]}} for line in classified]


if __name__ == "__main__":
    sys.exit(main())
