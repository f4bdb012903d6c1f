"""In the navigation of mkdocs.yml a folder (`decisions/`) stands for its pages, in their order. A hook of MkDocs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    config["nav"] = spelled_out(config["nav"], Path(config["docs_dir"]))
    return config


def spelled_out(entry: Any, docs: Path) -> Any:
    if isinstance(entry, list):
        return [spelled_out(one, docs) for one in entry]
    if isinstance(entry, dict):
        return {title: spelled_out(one, docs) for title, one in entry.items()}
    return [page.relative_to(docs).as_posix() for page in sorted((docs / entry).glob("*.md"))] if entry.endswith("/") else entry
