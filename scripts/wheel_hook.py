"""With `HEADWORKS_WHEEL=compiled`, what `scripts/compile` has made goes into the wheel, which is for this platform then."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("HEADWORKS_WHEEL") != "compiled":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from headworks import compiled

        if not compiled.is_current():
            raise SystemExit("scripts/compile comes first, with the Python that the wheel is for")
        build_data["artifacts"] += [f"src/headworks/_compiled/{name}" for name in (f"*{compiled.SUFFIX}", compiled.STAMP.name)]
        build_data["pure_python"], build_data["infer_tag"] = False, True
