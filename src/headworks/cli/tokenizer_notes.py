"""What `check` says about tokenizers: whether a gateway that starts with this file could count with them."""

from __future__ import annotations

from headworks.config.load import Loaded
from headworks.config.problem import Problem
from headworks.gateway.counting import TokenizerError, load


def tokenizer_notes(loaded: Loaded) -> list[Problem]:
    """A warning for each that cannot be used. Files are read; nothing is counted."""
    found = []
    for name, model in loaded.config.models.items() if loaded.config is not None else ():
        if model.tokenizer is None:
            continue
        try:
            load(model.tokenizer)
        except TokenizerError as error:
            found.append(Problem(loaded.file, 0, f"models.{name}.tokenizer", f"a gateway will not start: {error}"))
    return found
