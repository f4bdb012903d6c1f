"""The verbs that look into a gateway are tried on a whole one: `app_scene` of the gateway's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
