"""Renders the chart of deploy/helm into plain manifests, deploy/kubernetes, for those who run no Helm: `scripts/manifests`.

It understands the small part of Helm's template language that the chart keeps to (`{{ .Values.a }}`, `if`/`end`, pipelines of
`FUNCTIONS`), and raises on anything else, so that the chart stays within it. Values are read as Helm reads them: those of
values.yaml, and over them a file that is given.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "headworks"
MANIFESTS = ROOT / "deploy" / "kubernetes"
ALERTS = ROOT / "dashboards" / "alerts.yaml"
RELEASE = {"Name": "headworks", "Namespace": "serving"}
MADE = "# Made by scripts/manifests from deploy/helm/headworks. Do not edit.\n"

_TAG = re.compile(r"(?P<before>\s*)\{\{(?P<trim>-?)\s*(?P<text>.*?)\s*(?P<after>-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\([^()]*\)|\||[^\s|()]+')


class TemplateError(Exception):
    """What the chart may not say, since nothing here understands it."""


def to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, width=10_000).rstrip("\n").removesuffix("\n...")


def nindent(columns: int, text: str) -> str:
    return "\n" + "\n".join(" " * columns + line if line else line for line in str(text).splitlines())


def ternary(yes: Any, no: Any, value: Any) -> Any:
    if not isinstance(value, bool):  # Helm's takes no other
        raise TemplateError(f"ternary judges true and false, not {value!r}")
    return yes if value else no


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "toYaml": to_yaml,
    "nindent": nindent,
    "quote": lambda value: '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"',
    "default": lambda instead, value: value or instead,
    "ternary": ternary,
    "add": lambda *values: sum(values),
    "omit": lambda mapping, *keys: {key: value for key, value in mapping.items() if key not in keys},
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "not": lambda value: not value,
}


class Template:
    """One template and what its names stand for."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def render(self, text: str) -> str:
        out: list[str] = []
        shown = [True]
        at = 0
        for tag in _TAG.finditer(text):
            trimmed = "" if tag["trim"] else tag["before"]
            if all(shown):
                out.append(text[at : tag.start()] + trimmed)
            at = tag.end()
            if tag["after"]:
                raise TemplateError(f"{tag[0].strip()}: no trimming behind")
            words = _WORD.findall(tag["text"])
            if words[0] == "if":
                shown.append(bool(self.pipeline(words[1:])) if all(shown) else False)
            elif words == ["end"]:
                shown.pop()
            elif all(shown):
                out.append(self.text(self.pipeline(words)))
        if shown != [True]:
            raise TemplateError("an if without an end")
        return "".join(out) + text[at:]

    @staticmethod
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    def pipeline(self, words: list[str]) -> Any:
        """`a b | c d`: what the first says is the last argument of the next."""
        value: Any = None
        for place, part in enumerate(" ".join(words).split(" | ")):
            value = self.call(_WORD.findall(part), [value] if place else [])
        return value

    def call(self, words: list[str], last: list[Any]) -> Any:
        name, rest = words[0], words[1:]
        if name == ".Files.Get":
            return (CHART / self.one(rest[0])).read_text()
        if name in FUNCTIONS:
            return FUNCTIONS[name](*[self.one(word) for word in rest], *last)
        if rest or last:
            raise TemplateError(f"{name} is no function of this chart; it has {', '.join(FUNCTIONS)}")
        return self.one(name)

    def one(self, word: str) -> Any:
        if word.startswith("("):
            return self.pipeline(_WORD.findall(word[1:-1]))
        if word.startswith('"'):
            return word[1:-1]
        if word.lstrip("-").isdecimal():
            return int(word)
        value: Any = self._names
        for name in word.removeprefix(".").split("."):
            if not word.startswith(".") or not isinstance(value, dict) or name not in value:
                raise TemplateError(f"{word} is nothing that this chart knows")
            value = value[name]
        return value


def merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merged(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


def rendered(over: dict[str, Any] | None = None) -> dict[str, str]:
    """Each template's name and what it comes to, empty ones left out."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = merged(yaml.safe_load((CHART / "values.yaml").read_text()), over or {})
    template = Template({"Values": values, "Release": RELEASE, "Chart": {"AppVersion": chart["appVersion"]}})
    made = {path.name: template.render(path.read_text()) for path in sorted((CHART / "templates").glob("*.yaml"))}
    return {name: text.lstrip("\n") for name, text in made.items() if text.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--values", type=Path, help="a file of values over those of the chart")
    parser.add_argument("--to", type=Path, default=MANIFESTS, help="where to write them; default: deploy/kubernetes")
    options = parser.parse_args()
    shutil.copyfile(ALERTS, CHART / "alerts.yaml")
    options.to.mkdir(parents=True, exist_ok=True)
    for old in options.to.glob("*.yaml"):
        old.unlink()
    for name, text in rendered(yaml.safe_load(options.values.read_text()) if options.values else None).items():
        (options.to / name).write_text(MADE + text)


if __name__ == "__main__":
    main()
