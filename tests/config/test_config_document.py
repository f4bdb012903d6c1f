"""YAML with lines: what is read, what is refused, and that a small file cannot become a large one."""

from __future__ import annotations

import pytest

from headworks.config.document import ALIASES_MAX, BYTES_MAX, DEPTH_MAX, NODES_MAX, DocumentError, parse


def fault(raw: bytes) -> tuple[int, str]:
    with pytest.raises(DocumentError) as caught:
        parse(raw)
    return caught.value.line, caught.value.text


def test_every_key_and_item_has_its_line() -> None:
    document = parse(b"a:\n  b: 1\n  c:\n  - x\n  - {d: 2,\n     e: 3}\n")
    assert document.value == {"a": {"b": 1, "c": ["x", {"d": 2, "e": 3}]}}
    assert document.lines[("a", "b")] == 2
    assert document.lines[("a", "c", 0)] == 4
    assert document.lines[("a", "c", 1, "e")] == 6
    assert document.line(("a", "b", "no such key")) == 2


def test_a_key_given_twice_is_a_fault_with_both_lines() -> None:
    document = parse(b"a: 1\nb: 2\na: 3\n")
    assert document.faults == [(("a",), 3, "the key stands twice, first in line 1; keep one of them")]
    assert document.value == {"a": 1, "b": 2}


def test_a_nested_key_given_twice_is_found_too() -> None:
    assert [line for _, line, _ in parse(b"a:\n  b: 1\n  b: 2\n").faults] == [3]


def test_keys_are_text_as_written() -> None:
    assert parse(b"no: 1\n1: 2\n2026-01-01: 3\n").value == {"no": 1, "1": 2, "2026-01-01": 3}


def test_merge_keys_bring_what_is_not_stated() -> None:
    document = parse(b"a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")
    assert document.value["b"] == {"x": 1, "y": 3}
    assert document.faults == []


@pytest.mark.parametrize(
    "raw",
    [
        b"a: !!python/object/apply:os.system [ls]\n",
        b"a: !thing {b: 1}\n",
        b"a: !!set {b, c}\n",
        b"a: !!python/name:os.system x\n",
    ],
)
def test_tags_that_make_objects_are_refused(raw: bytes) -> None:
    document = parse(raw)
    assert document.value == {"a": None}
    assert [path for path, _, _ in document.faults] == [("a",)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85", "\u2028"])
def test_a_fault_behind_any_end_of_line_that_yaml_knows_has_its_line(end: str) -> None:
    """Found by fuzzing: lines that end in a bare CR were counted by the parser and not by us, an `IndexError`."""
    with pytest.raises(DocumentError) as caught:
        parse(end.join(["a: 1"] * 5 + ["b: {c"]).encode())
    assert caught.value.line >= 6


def test_a_scalar_that_cannot_be_what_it_looks_like_is_a_fault() -> None:
    assert parse(b"a: 2026-13-45\n").faults[0][:2] == (("a",), 1)


def test_syntax_error_names_the_line_and_repeats_nothing() -> None:
    line, text = fault(b'a: 1\nkeys: ["sk-secret\n')
    assert line in (2, 3)
    assert text.startswith("not YAML: ")
    assert "sk-secret" not in text


def test_tabs_get_a_hint() -> None:
    line, text = fault(b"a:\n\tb: 1\n")
    assert line == 2
    assert "YAML indents with spaces" in text


def test_a_billion_laughs_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert fault("\n".join(lines).encode())[1] == "aliases make the file too large or too deep"


def test_a_value_inside_itself_is_refused() -> None:
    assert fault(b"a: &a [*a]\n")[1] == "aliases make the file too large or too deep"


def test_aliases_are_bounded() -> None:
    raw = b"a: &a 1\nb: [" + b", ".join([b"*a"] * (ALIASES_MAX + 1)) + b"]\n"
    assert fault(raw) == (2, "the file has more than 100 aliases; nothing here needs so many")
    parse(b"a: &a 1\nb: [" + b", ".join([b"*a"] * ALIASES_MAX) + b"]\n")


def test_depth_is_bounded() -> None:
    assert "32 levels" in fault(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))[1]
    assert "depth" in fault(b"[" * 100_000)[1] or "32 levels" in fault(b"[" * 100_000)[1]


def test_nodes_are_bounded() -> None:
    assert "200000 values" in fault(b"a: [" + b"1," * (NODES_MAX + 1) + b"]")[1]


def test_size_is_bounded() -> None:
    assert fault(b"a: " + b"x" * BYTES_MAX)[0] == 1


@pytest.mark.parametrize(("raw", "line"), [(b"a: 1\nb: \xff\n", 2), (b"a: 1\n\nb: \x00\n", 3), (b"a: 1\n---\nb: 1\n", 2)])
def test_what_is_no_text_or_more_than_one_document_is_refused(raw: bytes, line: int) -> None:
    assert fault(raw)[0] == line


def test_an_empty_file_is_nothing() -> None:
    assert parse(b"# only a comment\n").value is None
