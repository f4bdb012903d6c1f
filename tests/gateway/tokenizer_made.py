"""A real tokenizer of a test's own, made in milliseconds: byte-level byte-pair encoding, trained on a few sentences."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SENTENCES = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "def total(values: list[int]) -> int:\n    return sum(value for value in values if value > 0)\n",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "All human beings are born free and equal in dignity and rights, and should act in a spirit of brotherhood.",
)


def made(merges: int = 600) -> Tokenizer:
    """With 0 merges every byte is a token: the worst a byte-level vocabulary can be."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return tokenizer


def file(directory: Path, merges: int = 600) -> str:
    """The same as the file that a configuration names."""
    path = directory / f"tokenizer-{merges}.json"
    made(merges).save(str(path))
    return str(path)


def tokens(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))
