"""Taking a tenant out of a decision log (F2): its decisions, outcomes, names and forms, from every file, and its index with it.

Each file is written anew beside the old one, synced and put in its place: whoever reads meanwhile reads the one or the other.
Its time stays, so it expires when it would have. In facts about the gateway (`policy`, `used`) what is about the tenant is
taken out; what an operator declared stays, as that is the operator's record. The usage journal is an account, and is not
touched.

A file that is being written is locked by its gateway (`log_files.py`), which has to be asked: it begins another one first.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headworks.core.quota import scope
from headworks.gateway import log_index
from headworks.gateway.log_files import paths
from headworks.logs.fields import FORM
from headworks.logs.reading import Meaning, parsed

MODE = 0o640
RECORD = re.compile(rb'\["[a-z_]+",(\d+),')
"""How a record begins: with its kind and the number of its form (`logs/fields.py`). One that is cut short has another end."""
END = b"]\n"


@dataclass(slots=True)
class Deleted:
    """What was taken out."""

    files: int = 0
    """That have something less than before."""
    lines: int = 0
    busy: list[str] = field(default_factory=list)
    """Files that another process is writing: nothing was taken out of them."""


def delete(directory: Path, tenant: str) -> Deleted:
    """Take a tenant out of every file that nobody is writing."""
    deleted = Deleted()
    for path in paths(directory):
        try:
            lines = _locked(path, tenant)
        except BlockingIOError:
            deleted.busy.append(path.name)
            continue
        except FileNotFoundError:  # it has expired meanwhile
            continue
        deleted.files += lines > 0
        deleted.lines += lines
    return deleted


def _locked(path: Path, tenant: str) -> int:
    """As `_taken_out`, while nobody else may. Raises `BlockingIOError`, `FileNotFoundError`."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _taken_out(path, tenant)
    finally:
        os.close(file)


def _taken_out(path: Path, tenant: str) -> int:
    """How many lines are gone, or changed. The index goes first: it says where lines of the old file begin."""
    seen, unfinished = path.stat(), path.with_suffix(".part")
    changed = 0
    try:
        with path.open("rb") as old, open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE), "wb") as new:
            meaning = Meaning()
            for text in old:
                kept = _kept(text, meaning, tenant)
                changed += kept is not text
                new.write(kept)
            new.flush()
            os.fsync(new.fileno())
        if changed:
            os.utime(unfinished, ns=(seen.st_atime_ns, seen.st_mtime_ns))
            log_index.index_of(path).unlink(missing_ok=True)
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if changed and path.stat().st_size >= log_index.UNCOVERED_BYTES_MIN:
        log_index.make(path)
    return changed


def _kept(text: bytes, meaning: Meaning, tenant: str) -> bytes:
    """The line as it stays: itself, without the tenant, or nothing. What cannot be read goes, as nobody knows whose it is.

    Nearly all lines are records, and whose they are is said by their form: those need not be taken apart.
    """
    record_of = RECORD.match(text)
    form = meaning.forms.get(int(record_of[1])) if record_of is not None and text.endswith(END) else None
    if form is not None:
        return b"" if form["tenant"] == tenant else text
    given = parsed(text)
    told = meaning.lines(given)
    if isinstance(given, list):
        return b"" if not told or told[0]["record"]["key"][0] == tenant else text
    if not isinstance(given, dict):
        return b""
    record = given["record"]
    if given["kind"] == FORM:
        return b"" if record["tenant"] == tenant else text
    if "key" in record:
        return b"" if record["key"][0] == tenant else text
    return msgspec.json.encode(given) + b"\n" if _lessened(given["kind"], record, tenant) else text


def _lessened(kind: str, record: dict[str, Any], tenant: str) -> bool:
    """Whether a fact was about this tenant as well, and is not any more."""
    if kind == "policy":
        return record["tenants"].pop(tenant, None) is not None
    if kind == "used":
        before = record["used"]
        record["used"] = list(_others(before, scope(tenant, "")))
        return len(record["used"]) < len(before)
    return False


def _others(used: list[list[Any]], begins: str) -> Iterator[list[Any]]:
    return (charge for charge in used if not charge[0].startswith(begins))
