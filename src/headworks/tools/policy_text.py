"""The page itself, as Markdown and as one HTML file: made of the same fields, so neither says what the other does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headworks.sim.page import Cell, document, paragraph, section, table
from headworks.tools.policy_capacity import capacity_fields
from headworks.tools.policy_facts import FAIL, NOT_MEASURABLE, PASS, Box, Facts, Field
from headworks.tools.policy_proofs import boxes
from headworks.tools.policy_rules import rule_fields

MARKS = {PASS: "[x]", FAIL: "[!]", NOT_MEASURABLE: "[ ]"}
HEAD = ("Field", "Value", "Source", "How it was got", "What would change the policy")
SIGN_OFF = "Approval sign-off: ____________________  Date: __________"
SOURCES = (
    "measured: on this engine, for this page. config: the file says so. engine: the engine says so. physics: follows from sizes"
    " and rates. unknown: not measurable here, and why."
)


@dataclass(slots=True)
class Page:
    """The filled-in page."""

    title: str
    lead: str
    fields: list[Field]
    boxes: list[Box]

    @property
    def holds(self) -> bool:
        """No box failed."""
        return not any(box.outcome == FAIL for box in self.boxes)

    def sections(self) -> Mapping[str, list[Field]]:
        """In their order."""
        found: dict[str, list[Field]] = {}
        for field in self.fields:
            found.setdefault(field.section, []).append(field)
        return found


def page_of(facts: Facts, written_on: str) -> Page:
    """Fill it in."""
    lead = (
        f"Policy {facts.policy.version} of {facts.file}, pool {facts.pool}, class {facts.service_class}; measured on"
        f" {facts.url}; written on {written_on} by `headworks validate`."
    )
    return Page("Overload and failure policy", lead, [*capacity_fields(facts), *rule_fields(facts)], boxes(facts))


def told(page: Page) -> dict[str, Any]:
    """As plain values."""
    return {
        "holds": page.holds,
        "title": page.title,
        "lead": page.lead,
        "fields": [asdict(field) for field in page.fields],
        "boxes": [asdict(box) for box in page.boxes],
    }


def value_text(field: Field) -> str:
    """A value as a person reads it."""
    value, unit = field.value, field.unit
    if value is None:
        return "not measurable here"
    if unit == "bytes" and isinstance(value, int):
        text = f"{value:,} bytes"
        return (
            f"{text} ({value / 2**30:,.1f} GiB)"
            if value >= 2**30
            else f"{text} ({value / 2**20:,g} MiB)"
            if value >= 2**20
            else text
        )
    if unit == "s" and isinstance(value, float) and 0.0 < value < 0.1:
        return f"{value * 1000:.4g} ms"
    if isinstance(value, float):
        digits = f"{value:,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"
        return f"{digits} {unit}".strip()
    return f"{value:,} {unit}".strip() if isinstance(value, int) else f"{value} {unit}".strip()


def markdown(page: Page) -> str:
    """For a repository."""
    return "\n".join(_markdown(page)) + "\n"


def _markdown(page: Page) -> Iterator[str]:
    yield from (f"# {page.title}", "", page.lead, "", SOURCES, "")
    for title, fields in page.sections().items():
        yield from (f"## {title}", "", f"| {' | '.join(HEAD)} |", "|---|---|---|---|---|")
        for field in fields:
            cells = (field.name, value_text(field), field.source, field.how, field.change)
            yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
        yield ""
    for title in dict.fromkeys(box.section for box in page.boxes):
        yield from (f"## {title}", "")
        yield from (
            f"- {MARKS[box.outcome]} {box.line}: **{box.outcome}**. {_cell(box.evidence)}"
            for box in page.boxes
            if box.section == title
        )
        yield ""
    yield SIGN_OFF


def _cell(text: str) -> str:
    """On one line, and nothing in it ends the cell."""
    return " ".join(text.replace("|", "\\|").split())


def html(page: Page) -> str:
    """One file that needs nothing but a browser."""
    parts = [paragraph(SOURCES)]
    for title, fields in page.sections().items():
        rows = [
            [Cell(text, is_number=False) for text in (one.name, value_text(one), one.source, one.how, one.change)]
            for one in fields
        ]
        parts.append(f"<div class=prose>{section(title, table(HEAD, rows))}</div>")
    for title in dict.fromkeys(box.section for box in page.boxes):
        lines = [box for box in page.boxes if box.section == title]
        parts.append(section(title, *(paragraph(_box_text(box), KINDS[box.outcome]) for box in lines)))
    return document(page.title, page.lead, *parts, section("Sign-off", paragraph(SIGN_OFF)))


KINDS = {PASS: "holds", FAIL: "warn", NOT_MEASURABLE: ""}


def _box_text(box: Box) -> str:
    return f"{box.outcome.upper()}: {box.line}. {box.evidence}"
