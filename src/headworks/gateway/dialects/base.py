"""From a client's body to what is asked for, and from there to the body we send: what every dialect shares.

What was accepted (`fields.py`) goes upstream as the very bytes that came, each field once, inside a body we build; what
decides cost (limits, samples, streaming) is written by us from the values we priced. So no duplicate key, odd number or
odd encoding can mean one thing here and another thing in the engine.

`parse` of a dialect returns a `Parsed` or a `Fault`: a wrong body is an answer, not an exception. Inside a dialect
`Unacceptable` carries the fault up to `parse`, which is the only place that catches it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from headworks.config.settings import PartPrices
from headworks.gateway.dialects import long_bodies
from headworks.gateway.dialects.complaints import translated
from headworks.gateway.dialects.fields import (
    ASSEMBLED_EXACTLY,
    TOKENS_RANGE_MAX,
    Fault,
    SharedFields,
    StreamOptions,
    Unacceptable,
    invalid,
    not_allowed,
)

__all__ = ["Fault", "Limits", "Parsed", "Route", "Unacceptable", "assemble", "few_enough", "read", "reading", "within"]

SURPLUS_BYTES_MAX = 16_384
"""White space and repeated fields that may stand between the fields of a body, while they are looked at."""

WRITTEN_BY_US = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "thinking"}
)
NOT_SENT = frozenset({"best_of", "use_beam_search", "background"})
"""Engines ignore the first (K27), and the others are refused when true."""
LABELS = frozenset(
    {
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "modalities"),
        *("prompt_cache_retention", "max_tool_calls", "inference_geo"),
    }
)
"""For a vendor's own service: accepted, so that a client need not be changed; not sent on, and no part of the fingerprint."""


@dataclass(slots=True)
class Limits:
    """What a body may ask for at most, from the configuration."""

    context_tokens: int | None = None
    """The largest context among the pools; None where no engine has told its own yet."""
    samples_max: int = 128
    """Sequences of one request: n × prompts."""
    parts: Mapping[str, PartPrices] = field(default_factory=dict)
    """By model, what images and audio take of its prompt (`parts.py`)."""


class Parts(NamedTuple):
    """What a prompt has beside text."""

    tokens: int = 0
    data_bytes: int = 0
    """As they are written in the body."""


NO_PARTS = Parts()


AskedFields = TypeVar("AskedFields", bound=msgspec.Struct)
SampledFields = TypeVar("SampledFields", bound=SharedFields)


class Route(Generic[AskedFields]):
    """One path and the fields it accepts."""

    __slots__ = ("decoder", "keys", "path", "spaced_keys")

    def __init__(self, path: str, fields: type[AskedFields]) -> None:
        self.path = path
        self.decoder = msgspec.json.Decoder(fields)
        """Knows every field's type and range."""
        self.keys = {
            name: b'"' + name.encode() + b'":'
            for name in fields.__struct_fields__
            if name not in WRITTEN_BY_US | NOT_SENT | LABELS
        }
        """The fields that go upstream as they came, as their keys are written there."""
        self.spaced_keys = {name: b'"' + name.encode() + b'": ' for name in fields.__struct_fields__}
        """All fields, as most JSON libraries write their keys unless told otherwise."""


_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")

Raws: TypeAlias = dict[str, msgspec.Raw]
"""Each field's own bytes."""


def read(route: Route[AskedFields], body: bytes) -> tuple[AskedFields, Raws, bytes]:
    """Decode a body by its route's fields, or raise `Unacceptable`: its fields by type, as bytes, and those that go upstream.

    Every value is looked at by its type, so none is skipped: a decoder does not check the encoding of what it skips.
    """
    try:
        asked = route.decoder.decode(body)  # first, since it stops at the first field that is not known
        raws = long_bodies.fields(_TOP.decode, body)
    except RecursionError as error:
        raise invalid("The body is nested too deeply.") from error
    except msgspec.ValidationError as error:
        raise translated(str(error)) from error
    except msgspec.DecodeError as error:
        raise invalid(f"The body is not JSON: {error}.") from error
    keys = route.keys
    pieces: list[bytes | msgspec.Raw] = []
    compact_bytes = 1
    for name, raw in raws.items():
        key = keys.get(name)
        if key is not None and raw != _NULL:
            pieces += key, raw, b","
        else:
            compact_bytes += len(name) + 4 + len(raw)
    forwarded = b"".join(pieces)
    if len(body) != compact_bytes + len(forwarded):
        _refuse_repeated(route, body, raws)
    return asked, raws, forwarded


def _refuse_repeated(route: Route[AskedFields], body: bytes, raws: dict[str, msgspec.Raw]) -> None:
    """Refuse a body that names a field twice: the decoder keeps the last, and another reader may keep the first.

    A body without white space is exactly as long as its fields, then holds nothing else, and does not come here. One
    with the usual spaces is written again and compared. Any other is counted, with its large values taken out.
    """
    spaced: list[bytes | msgspec.Raw] = []
    for name, raw in raws.items():
        spaced += route.spaced_keys[name], raw, b", "
    if body[1:-1] == b"".join(spaced[:-1]):
        return
    rest = body
    for raw in raws.values():
        piece = bytes(raw)
        if len(piece) > 64:
            rest = rest.replace(piece, b"0", 1)
    if len(rest) > SURPLUS_BYTES_MAX:
        raise invalid("The body has too much white space, or names a large field twice.")
    try:
        names = [name for name, _ in json.loads(rest, object_pairs_hook=list)]
    except (ValueError, RecursionError):  # only of a field that is named twice another value can have been taken out
        raise invalid("The body names a field twice.") from None
    for name in raws:
        if names.count(name) > 1:
            raise invalid(f"{name} is given twice.", name)


_SENT = msgspec.Struct()
"""In place of what a request asked that has been sent for good."""


@dataclass(slots=True)
class Parsed:
    """What a request asks for, and the body it becomes. `prompt_bytes` and `prompt_tokens` are those of one sequence."""

    path: str
    asked: msgspec.Struct
    """Its route's fields, by type."""
    raws: Raws
    forwarded: bytes
    """The fields that go upstream as they came, each with its comma."""
    model: str
    prompt_bytes: int
    """Text, tools and schemas of one sequence; of several prompts the mean, rounded up, so that samples × it is the sum."""
    prompt_tokens: int | None
    """Exact for token-id prompts; and `truncate_prompt_tokens` where a prompt may be longer, as an engine leaves no more."""
    output_tokens_max: int | None
    """A sample's limit by the client, at most the context; None leaves the rest of the context."""
    output_tokens_min: int
    """What a sample generates at least: `min_tokens`, or all that it may with `ignore_eos`."""
    samples: int
    stream: bool
    include_usage_asked: bool
    limit_key: bytes
    """The name of its output limit, as it is written there; empty where nothing is generated."""
    assembles: bool
    """It is not streamed, and the same answer can be put together from a stream (A8)."""
    prompt_kind: str
    """What most of the prompt is made of, as far as that decides its tokens a byte."""
    prompts: int
    stream_tail: bytes = b""
    """What asks for a stream."""
    tail: bytes = b""
    """What is always said beside what the client gave."""
    least_asked: int | None = None
    """`min_tokens` as it was given."""
    parts: Parts = NO_PARTS
    """Images and audio; what is said of its prompt above is said of its text."""

    def let_go(self) -> None:
        """It will not be sent again: what it asked is not needed any more, and a long prompt is most of what a stream holds."""
        self.asked, self.raws, self.forwarded = _SENT, {}, b""

    def build(self, output_tokens_max: int, salt: bytes | None, streamed: bool = False) -> bytes:
        """The body we send: what the client gave, each field once, and what we decide ourselves.

        `streamed`: its client does not want a stream, and the engine is asked for one.
        """
        rest = self.tail + b"}"
        if salt is not None:
            rest = b',"cache_salt":"%b"%b' % (salt.hex().encode(), rest)
        if self.stream or streamed:
            rest = self.stream_tail + rest
        if self.least_asked is not None:
            rest = b',"min_tokens":%d%b' % (min(self.least_asked, output_tokens_max), rest)
        if not self.limit_key:
            return b"{%b%b" % (self.forwarded[:-1], rest)
        return b"{%b%b%d%b" % (self.forwarded, self.limit_key, output_tokens_max, rest)

    def fingerprint(self) -> str:
        """SHA-256 of the route and of every parameter that matters, however it was written (A6)."""
        matter = {name: msgspec.json.decode(raw) for name, raw in self.raws.items() if name not in LABELS and raw != _NULL}
        return sha256(self.path.encode() + b"\n" + msgspec.json.encode(matter, order="sorted")).hexdigest()


_STREAM = b',"stream":true,"stream_options":{"include_usage":true}'
_STREAM_RUNNING_USAGE = b',"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}'


def assemble(
    route: Route[SampledFields],
    asked: SampledFields,
    raws: Raws,
    forwarded: bytes,
    limits: Limits,
    prompts_bytes: int,
    prompt_kind: str,
    prompts_tokens: int | None = None,
    prompts: int = 1,
    second_limit: int | None = None,
    default_limit: int | None = None,
) -> Parsed:
    """What chat and completions read the same way: how much, how often, in which form.

    `second_limit` is the limit under its newer name, `default_limit` the one that leaving both out means.
    """
    if asked.use_beam_search:
        raise not_allowed("use_beam_search")
    stream = bool(asked.stream)
    # Of two limits the larger counts, as it is what may be used (K22).
    limit_key = b'"max_tokens":'
    output_tokens_max = asked.max_tokens
    if second_limit is not None:
        limit_key = b'"max_completion_tokens":'
        output_tokens_max = max(output_tokens_max or 0, second_limit)
    elif output_tokens_max is None:
        output_tokens_max = default_limit
    output_tokens_max = within(output_tokens_max, limits)
    options = asked.stream_options
    plain = prompts == 1 and asked.n is None and asked.best_of is None
    prompt_bytes = -(-prompts_bytes // prompts)
    cut = asked.truncate_prompt_tokens
    return Parsed(
        route.path,
        asked,
        raws,
        forwarded,
        asked.model,
        prompt_bytes,
        None if cut is None and prompts_tokens is None else _prompt_tokens(cut, prompt_bytes, prompts_tokens, prompts),
        output_tokens_max,
        0 if asked.min_tokens is None and not asked.ignore_eos else _output_least(asked, output_tokens_max),
        1 if plain else _samples(asked, prompts, limits.samples_max),
        stream,
        False if options is None else _usage_asked(options, stream),
        limit_key,
        not stream and _is_plain(raws),
        prompt_kind,
        prompts,
        _STREAM_RUNNING_USAGE if options is not None and options.continuous_usage_stats else _STREAM,
        least_asked=asked.min_tokens,
    )


def _is_plain(raws: Raws) -> bool:
    exactly = ASSEMBLED_EXACTLY
    for name in raws:  # noqa: SIM110 (of each request)
        if name not in exactly:
            return False
    return True


def within(output_tokens_max: int | None, limits: Limits) -> int | None:
    """A limit is at most the context: an engine refuses more."""
    context_tokens = limits.context_tokens
    if output_tokens_max is not None and context_tokens is not None and output_tokens_max > context_tokens:
        return context_tokens
    return output_tokens_max


def reading(
    route: Route[AskedFields],
    asked: AskedFields,
    raws: Raws,
    forwarded: bytes,
    model: str,
    prompts_bytes: int,
    prompt_kind: str,
    prompts_tokens: int | None = None,
    prompts: int = 1,
    cut: int | None = None,
) -> Parsed:
    """What generates nothing: a prompt is read, or looked at, and no token is written."""
    size_bytes = -(-prompts_bytes // prompts)
    tokens = None if cut is None and prompts_tokens is None else _prompt_tokens(cut, size_bytes, prompts_tokens, prompts)
    return Parsed(
        route.path,
        asked,
        raws,
        forwarded,
        model,
        size_bytes,
        tokens,
        0,
        0,
        prompts,
        False,
        False,
        b"",
        False,
        prompt_kind,
        prompts,
    )


def few_enough(prompts: int, limits: Limits) -> int:
    """So many sequences of one request, or a fault."""
    if prompts > limits.samples_max:
        raise invalid(f"{prompts} inputs were given; {limits.samples_max} are allowed in one request.", "input")
    return prompts


def _usage_asked(options: StreamOptions, stream: bool) -> bool:
    """Whether the client wants the usage chunk. We ask for it in any case."""
    if not stream:
        raise invalid("stream_options needs stream to be true.", "stream_options")
    return bool(options.include_usage or options.continuous_usage_stats)


def _output_least(asked: SharedFields, output_tokens_max: int | None) -> int:
    """What a sample certainly generates, as far as the client decides it."""
    least = asked.min_tokens or 0
    if output_tokens_max is None:
        return TOKENS_RANGE_MAX if asked.ignore_eos else least
    if least > output_tokens_max:
        raise invalid(f"min_tokens is {least}, more than the {output_tokens_max} tokens allowed.", "min_tokens")
    return output_tokens_max if asked.ignore_eos else least


def _samples(asked: SharedFields, prompts: int, samples_max: int) -> int:
    """Sequences the engine will run. `best_of` is not sent, so it costs what n costs (K27)."""
    wanted = asked.n or 1
    if asked.best_of is not None and asked.best_of < wanted:
        raise invalid("best_of may not be less than n.", "best_of")
    samples = wanted * prompts
    if samples > samples_max:
        what = "n" if prompts == 1 else "n × prompts"
        raise invalid(f"{what} is {samples}; {samples_max} are allowed.", "n")
    return samples


def _prompt_tokens(cut: int | None, prompt_bytes: int, tokens: int | None, prompts: int) -> int | None:
    """Tokens of one sequence where they are known. Text that may have more than it is cut to counts as that."""
    if tokens is not None:
        return -(-tokens // prompts)
    return cut if cut is not None and prompt_bytes >= cut else None
