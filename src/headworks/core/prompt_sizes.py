"""How many tokens a prompt of so many bytes is, learnt from what engines said of earlier ones (C1).

In a byte-level vocabulary no text has more tokens than UTF-8 bytes, and a template adds its own: `bytes + template` is never
too low, and up to seventeen times too high. What is charged is `bytes × ratio + template`, where the ratio is 1 until
`OBSERVATIONS_MIN` answers of that tenant, model and kind of content have told the real one, and then the largest of the
last `RATIOS_KEPT` seen, with a margin of `RATIO_MARGIN`.

*Kinds.* A token is four to five bytes of English, three of compact JSON and of Chinese, little more than one of base64. So
what was learnt from one is not used for another: `text`, `wide` (much of it beyond ASCII), `dense` (long runs without a
space) and `tools` (most of it their schemas) are told apart where the body is read, by what costs next to nothing there.

*Template.* What a model's template adds to an empty conversation is 1 to 30 tokens in most, some hundred where it brings
instructions of its own. An engine that counted more than bytes and template shows it, at the first such prompt: from then on
the template of that model counts as so much.
"""

from __future__ import annotations

from headworks.core.stats import Window

TEMPLATE_TOKENS = 32
"""What a template is expected to add around the messages, while no engine has shown it to be more."""
OBSERVATIONS_MIN = 20
RATIOS_KEPT = 100
RATIO_MARGIN = 1.05
LEARN_EVERY = 4
TEXT = "text"
WIDE = "wide"
DENSE = "dense"
TOOLS = "tools"
COUNTED = "counted"
"""Not learnt: a tokenizer has counted it, all but its template."""
UNSURE = frozenset({"bytes", "learnt"})
"""Bases of a prompt's size that are bounds, not counts."""
BYTES_A_TOKEN_LIKELY = 6
"""Hardly any content has more bytes a token: what passes a limit even so will not fit."""


class Ratios:
    """Tokens a byte, in content of one kind."""

    __slots__ = ("_count", "_window", "most")

    def __init__(self) -> None:
        self._count = 0
        self._window = Window(RATIOS_KEPT)
        self.most: float | None = None
        """What is charged for a byte; None while too few answers have told."""

    def add(self, ratio: float) -> None:
        """An engine counted so many tokens a byte."""
        self._count += 1
        if self.most is not None and self._count % LEARN_EVERY and ratio <= self.most:
            return  # a known tenant's usual prompt: one in a few keeps the window fresh
        self._window.add(ratio)
        if len(self._window) >= OBSERVATIONS_MIN:
            self.most = min(1.0, self._window.quantile(1.0) * RATIO_MARGIN)

    def least(self) -> float:
        """The least that was seen lately, with the same margin. Something must have been seen."""
        return self._window.quantile(0.0) / RATIO_MARGIN


class Template:
    """What a model's template adds, as far as its engines have shown."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = TEMPLATE_TOKENS

    def seen(self, tokens: int) -> None:
        """A prompt came to so many more tokens than it has bytes, or than were counted."""
        if tokens > self.tokens:
            self.tokens = tokens
