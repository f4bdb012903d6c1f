"""How many tokens will it take? Prompts from bytes, outputs from what the tenant's answers came to.

*Prompts* (`prompt_sizes.py`): exact where they came as token ids, counted where a tokenizer did that, else bytes × what this
tenant's bytes have been, and bytes alone, which is never too low, while that is not known. One thing must not come of that
bound: that somebody is told for good that a prompt does not fit which is a quarter of it. So where the bound passes what a
tenant or an engine can hold, and the prompt likely does not, it is charged all that may be held beside its output, and runs.
The engine's memory is charged its bound all the same, or all there is: what nobody counted may be as long as that.

*Outputs* (A8, A10; `output_lengths.py`). What is allowed is twenty to forty times what is used, so where an answer can grow
only its estimate is reserved: what all but a share of the tenant's answers stay within, and `growth.ahead_tokens` more, so that
one as long as that ends before it has to ask. While a tenant is not known it is what its pool's answers stay within or the
longest of its own, before anything is known `output_tokens_cold`, and no more than a quarter of what the smallest whole limit
leaves beside the prompt: a guess of ours must not make a small tenant's first request impossible (K08). Never more than is
allowed, never less than what the client makes certain. While tokens appear the estimate is made anew: `longer`.

What the engine's usage says at the end corrects what is learnt, never the reservation.
"""

from __future__ import annotations

from headworks.core.output_lengths import LENGTHS_KEPT, LENGTHS_MIN, Lengths, OutputLengths
from headworks.core.policy import TenantPolicy
from headworks.core.pool import Pool
from headworks.core.prompt_sizes import BYTES_A_TOKEN_LIKELY, COUNTED, TEMPLATE_TOKENS, UNSURE, Ratios, Template
from headworks.core.types import Request, Usage, Work

COLD_PARTS = 4
SLACK_TOKENS = 2
"""Beyond the quantile and the distance: a chat's first event has no text and is counted as a token, and an answer that
reaches the place where growth is asked for asks."""
PAIRS_MAX = 4_000
"""(tenant, model) pairs remembered; beyond, new pairs stay at the safe ratio and are expected to be as their pool."""
POOL_EVERY = 4
"""One answer in so many is kept for those whose tenant is not known yet."""


class _Learnt:
    """What the answers of one (tenant, model) have told."""

    __slots__ = ("outputs", "ratios", "template")

    def __init__(self, template: Template, quantile: float) -> None:
        self.template = template
        self.ratios: dict[str, Ratios] = {}
        """By kind of content."""
        self.outputs = OutputLengths(quantile)


class Estimator:
    """Learns from the answers of each (tenant, model), and sizes requests by it."""

    def __init__(self) -> None:
        self._learnt: dict[str, dict[str, _Learnt]] = {}
        """By tenant and model."""
        self._pairs = 0
        self._templates: dict[str, Template] = {}
        """By model; bounded as the pairs are."""
        self._pools: dict[str, Lengths] = {}
        self._observed = 0

    # arriving

    def work(self, request: Request, pool: Pool, tenant: TenantPolicy) -> Work:
        """What is charged: each sample holds its own prompt and output; memory goes by whole blocks (A1, design section 5).

        Without a client's maximum the output may be the rest of the context (unknown: then `output_tokens_cold`).
        """
        context_tokens, most = pool.context_tokens, request.output_tokens_max
        learnt = self._known(request)
        tokens = request.prompt_tokens
        basis = "exact"
        if tokens is None or request.prompt_kind == COUNTED:
            tokens, basis = self._prompt_tokens(request, learnt)
        if context_tokens and tokens >= context_tokens:
            tokens = context_tokens - 1  # an engine refuses more
        unsure, bound_tokens = basis in UNSURE, tokens
        if most is None:  # what a prompt turns out to leave is the engine's to say: a bound of ours must not cut the answer
            taken_tokens = self._likely_tokens(request, learnt) if unsure else tokens
            most = max(1, context_tokens - taken_tokens) if context_tokens else pool.policy.output_tokens_cold
        grows = pool.grows and (request.stream or request.assembles)
        room_tokens = _room_tokens(request, pool, tenant)
        if unsure and room_tokens is not None and tokens + most > room_tokens:
            certain = min(most, max(1, request.output_tokens_min)) if grows else most
            if tokens + certain > room_tokens:
                tokens = self._that_fits(tokens, certain, room_tokens, request, learnt)
        output_tokens = self._expected(request, tokens, most, room_tokens, learnt, pool) if grows else most
        return sized(tokens, output_tokens, most, request, pool, basis, bound_tokens if bound_tokens > tokens else 0)

    def _prompt_tokens(self, request: Request, learnt: _Learnt | None) -> tuple[int, str]:
        template = self._templates.get(request.model) if learnt is None else learnt.template
        template_tokens = TEMPLATE_TOKENS if template is None else template.tokens
        if request.prompt_tokens is not None:
            return request.prompt_tokens + template_tokens, COUNTED
        ratios = None if learnt is None else learnt.ratios.get(request.prompt_kind)
        if ratios is None or ratios.most is None:
            return request.prompt_bytes + template_tokens, "bytes"
        return int(request.prompt_bytes * ratios.most) + template_tokens, "learnt"

    def _that_fits(self, tokens: int, output_tokens: int, room_tokens: int, request: Request, learnt: _Learnt | None) -> int:
        """Of a prompt whose bound passes a limit that the prompt itself likely does not: what it may hold beside its output."""
        likely_tokens = self._likely_tokens(request, learnt)
        if likely_tokens + output_tokens > room_tokens:
            return tokens
        beside_tokens = min(request.output_tokens_max or room_tokens, room_tokens // COLD_PARTS)
        return max(likely_tokens, room_tokens - max(output_tokens, beside_tokens))

    def _likely_tokens(self, request: Request, learnt: _Learnt | None) -> int:
        """What such a prompt hardly stays under."""
        ratios = None if learnt is None else learnt.ratios.get(request.prompt_kind)
        if ratios is None or ratios.most is None:
            return request.prompt_bytes // BYTES_A_TOKEN_LIKELY
        return int(request.prompt_bytes * ratios.least())

    def unsure(self, request: Request, pool: Pool, tenant: TenantPolicy) -> bool:
        """Whether a limit lies between what its prompt may come to and what it comes to at least (C1): worth counting."""
        learnt = self._known(request)
        tokens, _ = self._prompt_tokens(request, learnt)
        likely_tokens = self._likely_tokens(request, learnt)
        rooms_tokens = [room for room in (_room_tokens(request, pool, tenant), pool.context_tokens) if room]
        if not rooms_tokens:
            return False
        return likely_tokens <= min(rooms_tokens) - self.work(request, pool, tenant).output_tokens < tokens

    def _expected(
        self, request: Request, prompt_tokens: int, most: int, room_tokens: int | None, learnt: _Learnt | None, pool: Pool
    ) -> int:
        """What is reserved of an output that may become `most` tokens."""
        ahead_tokens = pool.policy.growth_ahead_tokens + SLACK_TOKENS
        told_tokens = None if learnt is None else learnt.outputs.expected(request.prompt_bytes)
        expected = self._guess(learnt, pool, ahead_tokens) if told_tokens is None else told_tokens + ahead_tokens
        certain = request.output_tokens_min
        if expected >= most or certain >= most:
            return most
        if room_tokens is not None:
            left_tokens = room_tokens - prompt_tokens
            expected = min(expected, left_tokens // COLD_PARTS if told_tokens is None else left_tokens)
        return max(1, expected, certain)

    def _guess(self, learnt: _Learnt | None, pool: Pool, ahead_tokens: int) -> int:
        """For a tenant that is not known yet: as its pool, or as its own few answers if these are longer."""
        lengths = self._pools.get(pool.name)
        own_tokens = 0 if learnt is None else learnt.outputs.guess()
        if lengths is None or lengths.tokens is None:
            return max(pool.policy.output_tokens_cold, own_tokens + ahead_tokens if own_tokens else 0)
        return max(lengths.tokens, own_tokens) + ahead_tokens

    # running

    def reached(self, request: Request, tokens: int, first: bool, quantile: float) -> None:
        """A running answer has come to the end of what is reserved for it, so many tokens; `first`: for the first time."""
        learnt = self._of(request, quantile)
        if learnt is not None:
            learnt.outputs.reached(tokens, first)

    def longer(self, request: Request, tokens: int) -> int | None:
        """What half of this tenant's answers stay within that became longer than this; None while that is not known."""
        learnt = self._known(request)
        return None if learnt is None else learnt.outputs.half_of_longer(tokens)

    # ending

    def observe(self, request: Request, usage: Usage, work: Work, quantile: float) -> None:
        """Learn from an answer that ended by itself, and for which `work` was reserved when it began.

        The template's share is left out of a prompt, so that small ones do not mislead.
        """
        learnt = self._of(request, quantile)
        if usage.output_tokens:
            self._observe_output(request, learnt, -(-usage.output_tokens // request.samples), work, quantile)
        if learnt is not None and usage.exact and request.prompt_bytes > 0 and request.samples == 1:
            _observe_prompt(request, learnt, usage.prompt_tokens)  # of several samples engines make up the sum differently

    def observe_cut(self, request: Request, output_tokens: int, work: Work, quantile: float) -> None:
        """An answer was ended early: it would have been longer still, so it counts if it says more than is known."""
        learnt = self._of(request, quantile)
        tokens = -(-output_tokens // request.samples)
        if learnt is not None and tokens > (learnt.outputs.expected(request.prompt_bytes) or 0):
            self._observe_output(request, learnt, tokens, work, quantile)
            learnt.outputs.reached(tokens, first=False)

    def _observe_output(self, request: Request, learnt: _Learnt | None, tokens: int, work: Work, quantile: float) -> None:
        reserved_tokens: int | None = work.output_tokens
        if learnt is not None:
            if work.output_tokens >= work.output_tokens_max:  # all that it may write was reserved: what would have been?
                reserved_tokens = learnt.outputs.expected(request.prompt_bytes)
            missed = reserved_tokens is not None and tokens > reserved_tokens
            learnt.outputs.add(tokens, request.prompt_bytes, missed, quantile)
        self._observed += 1
        lengths = self._pools.get(request.pool)
        if lengths is None:
            lengths = self._pools[request.pool] = Lengths(LENGTHS_KEPT, LENGTHS_MIN, quantile)
        if lengths.tokens is None or self._observed % POOL_EVERY == 0:
            lengths.add(tokens, lengths.tokens is not None and tokens > lengths.tokens, quantile)

    def _of(self, request: Request, quantile: float) -> _Learnt | None:
        learnt = self._known(request)
        if learnt is None and self._pairs < PAIRS_MAX:
            template = self._templates.get(request.model)
            if template is None:
                template = self._templates[request.model] = Template()
            learnt = self._learnt.setdefault(request.key[0], {})[request.model] = _Learnt(template, quantile)
            self._pairs += 1
        return learnt

    def _known(self, request: Request) -> _Learnt | None:
        models = self._learnt.get(request.key[0])
        return None if models is None else models.get(request.model)

    # looking in

    def standing(self, tenant: str) -> dict[str, dict[str, int | None]]:
        """By model: answers, those longer than was reserved, and what the next ones are expected to stay within (A10)."""
        return {
            model: {
                "answers": learnt.outputs.answers,
                "missed": learnt.outputs.missed,
                "output_tokens": learnt.outputs.expected(0),
            }
            for model, learnt in self._learnt.get(tenant, {}).items()
        }


def _observe_prompt(request: Request, learnt: _Learnt, tokens: int) -> None:
    """An engine has counted the prompt."""
    if request.prompt_kind == COUNTED and request.prompt_tokens is not None:
        learnt.template.seen(tokens - request.prompt_tokens)
    elif request.prompt_tokens is None:
        learnt.template.seen(tokens - request.prompt_bytes)
        ratios = learnt.ratios.get(request.prompt_kind)
        if ratios is None:
            ratios = learnt.ratios[request.prompt_kind] = Ratios()
        ratios.add(max(0, tokens - learnt.template.tokens) / request.prompt_bytes)


def _room_tokens(request: Request, pool: Pool, tenant: TenantPolicy) -> int | None:
    """What one sample can hold at most, by the smallest whole limit; None where none is known."""
    largest_tokens, tenant_tokens = pool.tokens_largest, tenant.active_tokens_max
    if largest_tokens is None:
        return None if tenant_tokens is None else tenant_tokens // request.samples
    room_tokens = largest_tokens // request.samples // pool.block_tokens * pool.block_tokens
    return room_tokens if tenant_tokens is None else min(room_tokens, tenant_tokens // request.samples)


def sized(
    prompt_tokens: int, output_tokens: int, most: int, request: Request, pool: Pool, basis: str, bound_tokens: int = 0
) -> Work:
    """The work of a request's samples, each with its own prompt and so much output reserved of at most `most`.

    No sequence holds more than the context, whatever its prompt may come to by its bound, and all together no more than an
    engine has: a prompt that nobody counted may take that, so it is charged that, and runs beside nobody.
    """
    per_sequence, block_tokens, samples = prompt_tokens + output_tokens, pool.block_tokens, request.samples
    if 0 < pool.context_tokens < per_sequence:
        per_sequence = pool.context_tokens
    kv_tokens = samples * (-(-per_sequence // block_tokens) * block_tokens)
    if bound_tokens:
        held_tokens = min(bound_tokens + output_tokens, pool.context_tokens or bound_tokens + output_tokens)
        largest_tokens = pool.largest_tokens(request.model) or kv_tokens
        kv_tokens = max(kv_tokens, min(largest_tokens, samples * (-(-held_tokens // block_tokens) * block_tokens)))
    tokens = samples * per_sequence
    return Work(tokens, samples * prompt_tokens, samples, 0.0, kv_tokens, output_tokens, basis, most, bound_tokens)
