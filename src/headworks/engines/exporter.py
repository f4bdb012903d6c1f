"""The accelerators' compute use, from an exporter beside the engine (`compute_url`).

What is looked for are gauges of NVIDIA's DCGM exporter, best first: the share of time in which the compute pipes were busy,
that in which the graphics engine was, and the old utilisation in per cent, which says no more than that *something* ran.
A page with several accelerators counts by the fullest, since an engine that is spread over them waits for that one; so a
page should show this replica's alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from urllib.parse import urlsplit

from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint
from headworks.engines.look import look
from headworks.engines.metrics_text import series
from headworks.engines.pool import Pool

GAUGES: tuple[tuple[bytes, float], ...] = (
    (b"DCGM_FI_PROF_SM_ACTIVE", 1.0),
    (b"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0),
    (b"DCGM_FI_DEV_GPU_UTIL", 100.0),
)
"""Name, and the value that means all of it."""


class Exporter:
    """One replica's exporter."""

    def __init__(self, url: str, clock_s: Callable[[], float]) -> None:
        self.url = url
        self._path = "" if urlsplit(url).path.strip("/") else "/"
        """Beside the path in the URL, which the endpoint writes itself."""
        self._looks = Pool(Endpoint(url), clock_s)

    async def compute_used_ratio(self) -> float:
        """What it says now. Raises `EngineError` with a sentence that helps."""
        seen = await look(self._looks, self._path)
        if seen.status != 200:
            raise EngineError(f"GET {self.url}: status {seen.status}, expected 200")
        for name, whole in GAUGES:
            ratios = [value / whole for _, value in series(seen.payload, name) if math.isfinite(value)]
            if ratios:
                return min(1.0, max(0.0, *ratios))
        names = ", ".join(name.decode() for name, _ in GAUGES)
        raise EngineError(f"GET {self.url}: none of {names} is there")

    async def close(self) -> None:
        """Close its connection."""
        await self._looks.close()
