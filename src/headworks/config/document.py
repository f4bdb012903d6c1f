"""YAML text → plain values that remember their lines.

The safe loader's grammar, with bounds: on size, depth, number of nodes and of aliases, so that a small file cannot become
a large one. Keys are text as written (`no:` is the key "no"), a key given twice is refused with both lines, tags that
make objects are refused. Nothing of the text itself is repeated in a message: it may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

BYTES_MAX = 1_048_576
DEPTH_MAX = 32
NODES_MAX = 200_000
ALIASES_MAX = 100

LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What YAML takes for the end of a line."""

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the root."""

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it (several times faster), else PyYAML's own: the same grammar."""

MAP_TAG = "tag:yaml.org,2002:map"
LIST_TAG = "tag:yaml.org,2002:seq"
MERGE_TAG = "tag:yaml.org,2002:merge"


class DocumentError(Exception):
    """The text is no YAML that can be read here."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line
        self.text = text


@dataclass(slots=True)
class Document:
    """A parsed file. `lines` has every key and list item; `faults` are problems that did not stop the reading, `unread` the
    places whose value could not be read and is None."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[tuple[Path, int, str]] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a place, or of the nearest thing around it that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(raw: bytes) -> Document:
    """Read one YAML document. Raises `DocumentError`."""
    if len(raw) > BYTES_MAX:
        raise DocumentError(1, f"the file has more than {BYTES_MAX} bytes; split the tenants' keys off with `keys add`")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(raw[: error.start].count(b"\n") + 1, "the file is not UTF-8 text") from None
    try:
        _bound(text)
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        raise DocumentError(line + 1, _yaml_problem(error, [*LINE_END.split(text), ""][line])) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", None) or 0
        raise DocumentError(len(LINE_END.findall(text[:position])) + 1, "a character is not allowed in YAML") from None
    reader = _Reader()
    return reader.read(node)


def _bound(text: str) -> None:
    """Look at the events before anything is built: aliases are counted and depth is known while memory is still small."""
    depth = aliases = 0
    for nodes, event in enumerate(yaml.parse(text, Loader=Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        for value, limit, what in (
            (depth, DEPTH_MAX, "levels"),
            (aliases, ALIASES_MAX, "aliases"),
            (nodes, NODES_MAX, "values"),
        ):
            if value > limit:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise DocumentError(line, f"the file has more than {limit} {what}; nothing here needs so many")


def _yaml_problem(error: yaml.MarkedYAMLError, line: str) -> str:
    """PyYAML's one-line problem. Its longer texts quote the file, so they are left out."""
    indent = line[: len(line) - len(line.lstrip())]
    hint = " (YAML indents with spaces, not tabs)" if "\t" in indent else ""
    return f"not YAML: {error.problem or 'it cannot be read'}{hint}"


class _Reader:
    """Turns nodes into values and notes their lines. Aliased nodes are read again each time, within the bound."""

    def __init__(self) -> None:
        self._document = Document()
        self._scalars = yaml.constructor.SafeConstructor()
        self._nodes = 0

    def read(self, node: yaml.Node | None) -> Document:
        if node is not None:
            self._document.value = self._value(node, (), 0)
        return self._document

    def _value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX:
            raise DocumentError(line, "aliases make the file too large or too deep")
        self._document.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode) and node.tag == MAP_TAG:
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == LIST_TAG:
            return [self._value(item, (*path, number), depth + 1) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        self._unread(path, line, "a YAML tag is not allowed here; write plain values")
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == MERGE_TAG:
                merged.update(self._merged(value_node, path, depth))
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._document.faults.append((path, line, "a key must be text"))
                continue
            key = key_node.value
            place = (*path, key)
            if key in own:
                first = self._document.lines[place]
                self._document.faults.append((place, line, f"the key stands twice, first in line {first}; keep one of them"))
                continue
            self._document.lines[place] = line
            own[key] = self._value(value_node, place, depth + 1)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: Path, depth: int) -> dict[str, Any]:
        """`<<: *other` brings the keys of other mappings; of several the first that has a key wins, as YAML 1.1 says."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._document.faults.append((path, node.start_mark.line + 1, "<< needs a mapping"))
                continue
            value = self._value(source, path, depth + 1)
            merged = {**value, **merged} if isinstance(value, dict) else merged
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: Path, line: int) -> Any:
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            self._unread(path, line, "this cannot be read as the kind of value it looks like; put it in quotes")
            return None

    def _unread(self, path: Path, line: int, text: str) -> None:
        self._document.faults.append((path, line, text))
        self._document.unread.append(path)
