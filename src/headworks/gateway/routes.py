"""Every path of the public port, and the methods that each takes."""

from __future__ import annotations

from headworks.gateway.admit import admit_methods
from headworks.gateway.dialects.table import DIALECTS
from headworks.gateway.own import METHODS as OWN_METHODS
from headworks.gateway.own import is_own

MODELS_PATH = "/v1/models"
METHODS: dict[str, tuple[str, ...]] = {**dict.fromkeys(DIALECTS, ("POST",)), MODELS_PATH: ("GET", "HEAD")}


def methods(path: str) -> tuple[str, ...] | None:
    """The methods a path takes; None: there is no such path."""
    return METHODS.get(path) or admit_methods(path) or (OWN_METHODS if is_own(path) else None)
