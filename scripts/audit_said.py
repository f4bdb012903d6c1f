"""What pip-audit found, in lines. Called by `scripts/audit`. Exit 1: a weakness is known, 2: a package was not looked at."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(file: str) -> int:
    packages = json.loads(Path(file).read_text())["dependencies"]
    weak = [(package, weakness) for package in packages for weakness in package.get("vulns", [])]
    skipped = [package for package in packages if "skip_reason" in package]
    for package, weakness in weak:
        fixed = ", ".join(weakness["fix_versions"]) or "no release"
        print(f"{package['name']} {package['version']}: {weakness['id']}, fixed in {fixed}")
    if len(skipped) == len(packages):
        print("not audited: pip-audit reached no data about any package")
        return 2
    for package in skipped:
        print(f"{package['name']}: not looked at: {package['skip_reason']}")
    print(f"{len(packages) - len(skipped)} packages looked at, {len(weak)} known weaknesses")
    return 1 if weak else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
