"""Pages that need nothing but a browser: one HTML file, no script, nothing fetched (drawings: `drawing.py`).

Light or dark is the reader's setting. Everything that comes from outside, names of tenants above all, passes `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(slots=True)
class Cell:
    """A number in a table, or a word; numbers stand to the right."""

    text: str
    is_number: bool = True


def number(value: float | int | None, unit: str = "", digits: int = 2) -> str:
    """With thousands apart; a dash where there is none."""
    if value is None:
        return "–"
    if unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return f"{text} {unit}" if unit and not unit.startswith("/") else f"{text}{unit}"


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str = "") -> str:
    """The first column names its row; heads stand as their cells do."""
    lines = [list(row) for row in rows]
    words = [not cell.is_number for cell in lines[0]] if lines else [False] * len(head)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    heads = "".join(
        f"<th scope=col{' class=word' if is_word else ''}>{escape(name)}</th>"
        for name, is_word in zip(head, words, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cell(cell, place == 0) for place, cell in enumerate(line))}</tr>" for line in lines)
    return f"<div class=wide><table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(cell: Cell, is_head: bool) -> str:
    kind = "" if cell.is_number else " class=word"
    return f"<th scope=row{kind}>{escape(cell.text)}</th>" if is_head else f"<td{kind}>{escape(cell.text)}</td>"


def section(title: str, *parts: str, columns: bool = False) -> str:
    """A heading and what belongs to it; figures side by side if asked."""
    inner = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{f'<div class=columns>{inner}</div>' if columns else inner}</section>"


def paragraph(text: str, kind: str = "") -> str:
    """Plain text."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"


def tiles(facts: Sequence[tuple[str, str]]) -> str:
    """What is to be seen first: a number and what it is."""
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl class=tiles>{pairs}</dl>"


def document(title: str, lead: str, *sections: str) -> str:
    """The whole file."""
    named = escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{named}</title><style>{STYLE}</style></head><body><main>'
        f"<header><h1>{named}</h1><p class=lead>{escape(lead)}</p></header>{''.join(sections)}</main></body></html>\n"
    )


STYLE = """
:root{--ink:#1b1f24;--soft:#59636e;--line:#dfe3e8;--paper:#fff;--ground:#f5f6f8;
--c0:#0b66c3;--c1:#c2570c;--c2:#0a7d5a;--c3:#8a3ab9;--c4:#a4123f;--c5:#5b6472;
--good:#2a9d6f;--late:#e3a32b;--refused:#9fb3c8;--left:#b48ead;--failed:#c8453b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4b0;--line:#31383f;--paper:#181c21;--ground:#101317;
--c0:#6cb2ff;--c1:#ff9f5a;--c2:#4fd1a5;--c3:#d0a2f7;--c4:#ff7d9c;--c5:#aab4c0;
--good:#3fb487;--late:#e3b04b;--refused:#5d7287;--left:#9d7a99;--failed:#e0655b}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0 0 6px}h2{font-size:18px;margin:34px 0 12px}
.lead{color:var(--soft);margin:0 0 18px;max-width:75ch}
.warn{border-left:4px solid var(--failed);padding:8px 12px;background:var(--paper)}
.holds{border-left:4px solid var(--good);padding:8px 12px;background:var(--paper)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:0 0 8px}
.tiles div{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{margin:2px 0 0;font-size:18px;font-weight:600;white-space:nowrap;font-variant-numeric:tabular-nums}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px}
figure{margin:0;background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
figcaption{font-weight:600;margin-bottom:6px}
svg{display:block;width:100%;height:auto}svg.key{display:inline-block;width:auto;vertical-align:-1px;margin-right:6px}
.grid{stroke:var(--line);stroke-width:1}.tick{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.limit{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:3 3}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}
.area.good{fill:var(--good)}.area.late{fill:var(--late)}.area.refused{fill:var(--refused)}.area.left{fill:var(--left)}
.area.failed{fill:var(--failed)}
.t0{fill:#3b7dd8}.t1{fill:#e08b3e}.t2{fill:#3f9c7a}.t3{fill:#9a6bc4}.t4{fill:#c65a6f}.t5{fill:#7f8c99}.t6{fill:#5fb3c4}
.t7{fill:#b59a3c}.t8{fill:#7a9e4e}.t9{fill:#b0708f}.t10{fill:#5c6fb1}.t11{fill:#a0785a}.t12{fill:#9aa4b0}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 0;padding:0;font-size:13px;color:var(--soft)}
.bars{display:grid;grid-template-columns:max-content 1fr;gap:6px 12px;align-items:center;margin:4px 0}
.bars dt{font-size:13px}.bars dd{margin:0}svg.bar{height:22px}
details{margin-top:8px;font-size:13px}summary{color:var(--soft);cursor:pointer}
.wide{overflow-x:auto}details .wide{max-height:320px;overflow-y:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;background:var(--paper)}
section>.wide{border:1px solid var(--line);border-radius:8px;margin-bottom:14px}
caption{text-align:left;font-weight:600;padding:10px 12px}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
thead th{color:var(--soft);font-weight:500;font-size:13px;vertical-align:bottom}
th:first-child,.word{text-align:left}tbody th{font-weight:500}tbody tr:last-child>*{border-bottom:0}
.none{color:var(--soft)}
.prose th,.prose td{white-space:normal;vertical-align:top;overflow-wrap:anywhere}.prose td,.prose tbody th{min-width:12ch}
.story{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:0 0 12px}
.story h3{margin:0 0 6px;font-size:15px}.story h4{margin:8px 0 2px;font-size:13px;color:var(--soft)}
.story p{margin:0 0 3px;overflow-wrap:anywhere}
"""
"""No font, image or script from anywhere."""
