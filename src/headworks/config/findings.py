"""What a check found, before it is known in which line."""

from __future__ import annotations

from dataclasses import dataclass

from headworks.config.document import Path


@dataclass(slots=True)
class Finding:
    """Something that does not fit together. `paths`: what was compared, the place to change first."""

    paths: tuple[Path, ...]
    text: str
    is_warning: bool = False
