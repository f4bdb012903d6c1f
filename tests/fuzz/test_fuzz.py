"""What was found by fuzzing, and a little more of it in every run: the corpus, and each of its files changed a few times.

The corpus grows by `scripts/fuzz` (docs/fuzzing.md); what it finds is copied there and stays. An example that fails is run
again by `pytest "tests/fuzz/test_fuzz.py" -k TARGET`, which prints the bytes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.targets import TARGETS, WORDS

CORPUS = Path(__file__).parent / "corpus"
CHANGES = 40
"""Of each file. `scripts/fuzz` makes millions."""
SLOW = {"config": 4, "lua": 8, "file": 15, "lines": 15}
CORPUS_BYTES_MAX = 200_000


def files(name: str) -> list[Path]:
    return sorted((CORPUS / name).iterdir())


def run(name: str, data: bytes) -> None:
    try:
        TARGETS[name](data)
    except Exception as error:
        raise AssertionError(f"{name} by {data!r}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_H3_what_fuzzing_has_found_is_mended(name: str) -> None:
    assert files(name)
    for file in files(name):
        run(name, file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_H3_no_change_of_a_known_input_breaks_its_reader(name: str) -> None:
    chance = Random(name)
    words = [word.encode().decode("unicode_escape").encode("latin-1") for word in WORDS.get(name, ())]
    for file in files(name):
        for _ in range(SLOW.get(name, CHANGES)):
            run(name, changed(chance, file.read_bytes(), words))


def changed(chance: Random, data: bytes, words: list[bytes]) -> bytes:
    """As a fuzzer changes it: bytes are others, gone, twice, or words of the kind."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(made) + 1)
        end = place + chance.choice((0, 0, 1, 2, 8, 64))
        piece = chance.choice(
            (b"", chance.randbytes(chance.randint(1, 3)), bytes(made[place:end]) * 2, chance.choice([*words, b"\0"]))
        )
        made[place:end] = piece
    return bytes(made)


def test_H3_the_corpus_is_small_and_every_target_has_some() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) <= CORPUS_BYTES_MAX
