"""Lines of a decision log read back as objects, whichever way they were written (`fields.py`).

{"kind":"decision","utc":"2026-11-29T23:59:59.123456Z","monotonic_s":812.5,"record":{"id":…,"verdicts":[{…},…],…}}
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headworks.logs.fields import ASKED_TIMES, DECISION, FIELDS, FORM, OUTCOME, TURNED_AWAY, USAGE
from headworks.logs.turned_away import both

Line = dict[str, Any]
US_PER_S = 1_000_000
NS_PER_S = 1_000_000_000
SCALES = {"_us": US_PER_S, "_ns": NS_PER_S}
OF_FORMS = frozenset({"number", "tenant", "verdicts", "asked"})
"""Fields of a form that are no fields of its records as they are."""
AT = {DECISION: "decided_s", OUTCOME: "ended_s"}
"""When a line was written, by the clock of the process."""


def lines(path: Path) -> Iterator[Line]:
    """All lines of a file, in order; one that a crash has cut is passed over."""
    meaning = Meaning()
    with path.open("rb") as file:
        for text in file:
            yield from meaning.lines(parsed(text))


def parsed(text: bytes) -> Any:
    """A line as it stands there; None: it is not whole."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


class Layout:
    """Where the fields of one kind of line are, as its file says."""

    def __init__(self, names: list[str], otherwise: dict[str, Any]) -> None:
        self.count = len(names) + len(otherwise)
        self.otherwise = list(otherwise.values())
        """What the last fields are where a line ends before them."""
        self.groups: dict[str, list[tuple[str, int]]] = {}
        """By the object that they are in, which for most is the record itself: its fields and their places."""
        self.scaled: list[tuple[int, int]] = []
        """Places of times that are counted, and how many are a second."""
        for place, name in enumerate((*names, *otherwise)):
            group, field, scale = _place(name)
            self.groups.setdefault(group, []).append((field, place))
            if scale > 1:
                self.scaled.append((place, scale))

    def record(self, given: list[Any]) -> Line:
        lacking = self.count - len(given)
        values = [*given, *self.otherwise[-lacking:]] if lacking > 0 else given
        for place, scale in self.scaled:
            if isinstance(values[place], int):
                values[place] /= scale
        record = {field: values[place] for field, place in self.groups[""]}
        for group, fields in self.groups.items():
            if group:
                record[group] = {field: values[place] for field, place in fields}
        return record


class Meaning:
    """What is known of a file: where its fields are, and which forms it has."""

    def __init__(self) -> None:
        self._layouts: dict[str, Layout] = {}
        """By kind."""
        self.forms: dict[int, Line | None] = {}
        """By number. None: it is known to be lost."""

    def lines(self, given: Any) -> list[Line]:
        """The line as an object, or as the two it stands for. None: it is about lines, or what it refers to was lost."""
        if isinstance(given, dict):
            return [] if self._learns(given) else [given]
        return self._told(given) if isinstance(given, list) and len(given) > 1 else []

    def lacks(self, given: Any) -> bool:
        """Whether it refers to a form that is not known."""
        return isinstance(given, list) and len(given) > 1 and isinstance(given[1], int) and given[1] not in self.forms

    def _learns(self, line: Line) -> bool:
        if line.get("kind") == FORM:
            self.forms[line["record"]["number"]] = line["record"]
            return True
        if line.get("kind") == FIELDS:
            self._layouts = {kind: Layout(told["names"], told["otherwise"]) for kind, told in line["record"].items()}
            return True
        return False

    def _told(self, given: list[Any]) -> list[Line]:
        layout = self._layouts.get(given[0])
        form = given[1] if isinstance(given[1], dict) else self.forms.get(given[1])
        if layout is None or form is None:
            return []
        record = layout.record(given)
        kind, utc_us = record.pop("kind"), record.pop("utc_us")
        del record["form"]
        record["key"] = [form["tenant"], record["id"] if record["key"] is None else record["key"]]
        for name, value in form.items():
            if name not in OF_FORMS:
                record[name] = value
        utc = utc_text(utc_us)
        if kind == TURNED_AWAY:
            decision, outcome = both(record, form)
            _finish_decision(decision, form)
            return [_line(DECISION, utc, decision), _line(OUTCOME, utc, outcome)]
        if kind == DECISION:
            _finish_decision(record, form)
        else:
            _finish_outcome(record, form)
        return [_line(kind, utc, record)]


def _line(kind: str, utc: str, record: Line) -> Line:
    return {"kind": kind, "utc": utc, "monotonic_s": record[AT[kind]], "record": record}


def _place(name: str) -> tuple[str, str, int]:
    """`forecast.wait_us` is the field `wait_s` of `forecast`, in millionths."""
    group, _, field = name.rpartition(".")
    scale = SCALES.get(field[-3:], 1) if field != "utc_us" else 1
    return group, f"{field[:-3]}_s" if scale > 1 else field, scale


USED = Layout([*USAGE], {})


def _finish_decision(record: Line, form: Line) -> None:
    came_s, compared = record.pop("came_s"), record.pop("compared")
    record["waited_s"] = record["decided_s"] - came_s
    record["verdicts"] = [
        _verdict(measure, value, limit)
        for measure, value, limit in zip(form["verdicts"], compared[::2], compared[1::2], strict=True)
    ]


def _verdict(measure: list[str], value: float | None, limit: float | None) -> Line:
    """It is passed if the value is within the limit; what is not finite is null."""
    check, scope, unit, reason = measure
    passed = limit is None or (value is not None and value <= limit)
    told = "" if passed else reason
    return {"check": check, "scope": scope, "value": value, "limit": limit, "unit": unit, "passed": passed, "reason": told}


def _finish_outcome(record: Line, form: Line) -> None:
    usage, asked = record["usage"], record["asked"]
    if usage is not None:
        record["usage"] = USED.record(usage)
    if asked is not None:
        for place in ASKED_TIMES:
            if isinstance(asked[place], int):
                asked[place] /= NS_PER_S
        record["asked"] = [*asked, *form["asked"]]


def utc_text(utc_us: int) -> str:
    """Microseconds since 1970 as `2026-11-29T23:59:59.123456Z`."""
    second, micros = divmod(utc_us, US_PER_S)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{micros:06d}Z"
