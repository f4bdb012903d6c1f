"""The verbs are tried on a whole gateway: `app_scene` of the gateway's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
