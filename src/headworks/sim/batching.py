"""`ContinuousBatching`: an engine that batches at every step, with paged memory, in virtual time.

One step computes one token for every decoding sequence and, with what is left of the token budget, chunks of prompts.
A step takes

    T = max(floor, base + c1 · prefill tokens + c2 · Σ chunk · context + c3 · decoding sequences + c4 · KV tokens read)

At a boundary, in this order: requests that arrived are taken in, aborts take effect, decoding sequences get the block
they need next, running prefills go on, waiting requests are admitted from the front while their *whole* prompt fits
(their output is not reserved). When a block is missing the newest running sequence is preempted: it loses its memory,
goes to the front of the waiting and later computes prompt and generated tokens again.

The work of a step does not grow with the batch. A decoding sequence makes exactly one token in every step, so what it
has made and where it needs its next block, reports or ends is known when it starts to decode: it is filed under the
number of the step in which that is due, and a step only looks at its own file.

Not modelled: caching of generated tokens, speculative decoding, several ranks, host offload.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

from headworks.sim.blocks import BlockPool
from headworks.sim.engine import (
    ABORTED,
    ENDED,
    Course,
    Finished,
    FirstToken,
    Gauges,
    Held,
    Output,
    Preempted,
    Submitted,
    Tokens,
    on_grid_s,
)
from headworks.sim.presets import BatchingSettings
from headworks.sim.sequences import DECODE, GONE, PREFILL, WAITING, EngineExecution, EngineSequence, by_order, course_of


class ContinuousBatching:
    """See the module. Obeys `sim.engine.EngineModel`."""

    def __init__(self, settings: BatchingSettings) -> None:
        assert settings.batch_tokens_max >= settings.running_max, "every decoding sequence must fit into one step"
        self._settings = settings
        self.block_tokens = settings.block_tokens
        self.running_max = settings.running_max
        self.incarnation = 0
        self._factor = 1.0
        self._outbox: list[Output] = []
        self._stand_up()
        self.kv_tokens = self._pool.total * settings.block_tokens

    def _stand_up(self) -> None:
        self.incarnation += 1
        self._pool = BlockPool(self._settings.kv_blocks, self._settings.block_tokens)
        self._executions: dict[str, EngineExecution] = {}
        self.inside = 0
        self._inbox: deque[tuple[float, EngineSequence]] = deque()
        self._front_free_s = 0.0
        self._waiting: OrderedDict[EngineSequence, None] = OrderedDict()
        self._running: OrderedDict[EngineSequence, None] = OrderedDict()
        self._prefilling: list[EngineSequence] = []
        self._chunks: list[tuple[EngineSequence, int]] = []
        self._decoding = 0
        self._context_tokens = 0
        self._needs: dict[int, dict[EngineSequence, None]] = {}
        self._due: dict[int, dict[EngineSequence, None]] = {}
        self._aborting: dict[str, int] = {}
        self._steps = 0
        self._step_end_s: float | None = None
        self._admitted = 0
        self._paused_s: float | None = None
        self._preemptions = 0
        self._prompt_total = 0
        self._cached_total = 0
        self._output_total = 0
        self._gauges = self._look()

    # The door.

    def submit(
        self, execution: str, prompt_tokens: int, output_tokens: int, samples: int, names: Sequence[Hashable], now_s: float
    ) -> Submitted:
        """An id that is already inside is not refused: both run, and one abort ends both, as on the real engine."""
        assert prompt_tokens > 0 and output_tokens >= 0 and samples > 0
        if self._pool.blocks_for(prompt_tokens + output_tokens) > self._pool.total:
            return Submitted.TOO_LONG
        queued_max = self._settings.queued_max
        if queued_max is not None and self.inside + samples > queued_max:
            return Submitted.BUSY
        entry = self._executions.get(execution)
        if entry is None:
            entry = self._executions[execution] = EngineExecution(execution)
        ready_s = on_grid_s(max(now_s, self._front_free_s) + self._settings.front_s)
        self._front_free_s = ready_s
        whole = names[: prompt_tokens // self.block_tokens]
        for _ in range(samples):
            sequence = EngineSequence(entry, len(entry.sequences), prompt_tokens, output_tokens, whole)
            entry.sequences.append(sequence)
            self._inbox.append((ready_s, sequence))
        entry.inside += samples
        self.inside += samples
        return Submitted.ACCEPTED

    def abort(self, execution: str, now_s: float) -> None:
        """Between steps nothing runs, so an idle engine lets go at once; else the next boundary or a later one does."""
        self._run_until(now_s)
        if execution not in self._executions:
            return
        if self._step_end_s is not None:
            self._aborting.setdefault(execution, self._steps + 1 + self._settings.abort_lag_steps)
        elif self._paused_s is not None:
            self._aborting.setdefault(execution, self._steps)
        else:
            self._drop(execution, now_s)

    # Time.

    def next_s(self) -> float | None:
        if self._outbox:
            return self._outbox[0].at_s
        return self._due_s()

    def _due_s(self) -> float | None:
        if self._paused_s is not None:
            return None
        if self._step_end_s is not None:
            return self._step_end_s
        return self._inbox[0][0] if self._inbox else None

    def advance(self, now_s: float) -> list[Output]:
        self._run_until(now_s)
        outputs, self._outbox = self._outbox, []
        return outputs

    def _run_until(self, now_s: float) -> None:
        while (due_s := self._due_s()) is not None and due_s <= now_s:
            if self._step_end_s is not None:
                self._end_step(due_s)
            self._begin_step(due_s)

    # One step, from its beginning to its end.

    def _begin_step(self, now_s: float) -> None:
        self._take_in(now_s)
        for execution in [execution for execution, step in self._aborting.items() if step <= self._steps]:
            self._drop(execution, now_s)
        self._grow(now_s)
        budget, prefill, attention = self._settings.batch_tokens_max - self._decoding, 0, 0
        for sequence in list(self._prefilling):
            chunk = min(budget, sequence.target_tokens - sequence.computed)
            if chunk > 0 and sequence.place == PREFILL and self._room_for_chunk(sequence, chunk, now_s):
                budget, prefill = budget - chunk, prefill + chunk
                attention += self._schedule(sequence, chunk)
        # A victim of this step stands first in line and does not fit: some of what it gave back has been taken.
        while budget > 0 and self._waiting and len(self._running) < self.running_max:
            sequence = next(iter(self._waiting))
            if not self._admit(sequence):
                break
            chunk = min(budget, sequence.target_tokens - sequence.computed)
            budget, prefill = budget - chunk, prefill + chunk
            attention += self._schedule(sequence, chunk)
        if not self._running:
            self._gauges = self._look()
            return
        cost = self._settings.cost.duration_s(prefill, attention, self._decoding, self._context_tokens + self._decoding)
        self._step_end_s = on_grid_s(now_s + cost * self._factor)

    def _take_in(self, now_s: float) -> None:
        while self._inbox and self._inbox[0][0] <= now_s:
            _, sequence = self._inbox.popleft()
            if sequence.place != GONE:
                self._waiting[sequence] = None

    def _grow(self, now_s: float) -> None:
        """Give each sequence whose last block is full the block its next token needs, oldest first."""
        step = self._steps + 1
        needing = self._needs.pop(step, None)
        if needing is None:
            return
        for sequence in sorted(needing, key=by_order):
            if sequence.place != DECODE or sequence.need_step != step or not self._make_room(1, sequence, now_s):
                continue
            self._pool.take(1)
            sequence.private_blocks += 1
            self._file_need(sequence, step + self.block_tokens)

    def _file_need(self, sequence: EngineSequence, step: int) -> None:
        sequence.need_step = step
        self._needs.setdefault(step, {})[sequence] = None

    def _make_room(self, blocks: int, sequence: EngineSequence, now_s: float) -> bool:
        """Preempt from the newest on until `blocks` are free. False: `sequence` itself had to go."""
        while self._pool.free() < blocks:
            victim = next(reversed(self._running))
            self._preempt(victim, now_s)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: EngineSequence, now_s: float) -> None:
        self._leave_batch(victim)
        victim.place = WAITING
        victim.preempted = True
        self._waiting[victim] = None
        self._waiting.move_to_end(victim, last=False)
        self._outbox.append(Preempted(victim.execution.id, victim.sample, now_s))

    def _leave_batch(self, sequence: EngineSequence) -> None:
        """Out of the running, memory given back, what it has generated kept."""
        del self._running[sequence]
        if sequence.place == DECODE:
            since = self._steps - sequence.joined_step
            sequence.generated += since
            self._context_tokens -= sequence.computed + since
            self._decoding -= 1
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
        self._pool.leave(sequence.private_blocks, sequence.named)
        sequence.private_blocks, sequence.named, sequence.computed = 0, [], 0

    def _room_for_chunk(self, sequence: EngineSequence, chunk: int, now_s: float) -> bool:
        held = sequence.private_blocks + len(sequence.named)
        return self._make_room(self._pool.blocks_for(sequence.computed + chunk) - held, sequence, now_s)

    def _admit(self, sequence: EngineSequence) -> bool:
        """Move the first of the waiting into the batch if its whole prompt fits beside what is held now."""
        target = sequence.prompt_tokens + sequence.generated
        # The last token is always computed: without it there is nothing to sample from.
        found = self._pool.cached(sequence.names, (target - 1) // self.block_tokens)
        shared = sequence.names[:found]
        if self._pool.free() - self._pool.idle_among(shared) < self._pool.blocks_for(target) - found:
            return False
        del self._waiting[sequence]
        self._pool.share(shared)
        self._admitted += 1
        sequence.order = self._admitted
        sequence.place = PREFILL
        sequence.target_tokens = target
        sequence.named = list(shared)
        sequence.computed = found * self.block_tokens
        if sequence.preempted:
            sequence.preempted = False
            self._preemptions += 1
        else:
            sequence.cached_tokens = sequence.computed
        self._running[sequence] = None
        self._prefilling.append(sequence)
        return True

    def _schedule(self, sequence: EngineSequence, chunk: int) -> int:
        """Take the chunk's blocks, publish the whole ones of the prompt; the chunk's share of the attention work."""
        before, after = sequence.computed, sequence.computed + chunk
        blocks = self._pool.blocks_for(after) - sequence.private_blocks - len(sequence.named)
        self._pool.take(blocks)
        sequence.private_blocks += blocks
        for name in sequence.names[before // self.block_tokens : after // self.block_tokens]:
            if self._pool.publish(name):
                sequence.private_blocks -= 1
                sequence.named.append(name)
        self._chunks.append((sequence, chunk))
        return chunk * after

    def _end_step(self, now_s: float) -> None:
        self._step_end_s = None
        self._steps += 1
        self._context_tokens += self._decoding
        self._output_total += self._decoding
        for sequence in self._due.pop(self._steps, ()):
            if sequence.place == DECODE and sequence.due_step == self._steps:
                self._report(sequence, now_s)
        chunks, self._chunks = self._chunks, []
        for sequence, chunk in chunks:
            sequence.computed += chunk
            if sequence.computed == sequence.target_tokens:
                self._join(sequence, now_s)
        self._gauges = self._look()

    def _join(self, sequence: EngineSequence, now_s: float) -> None:
        """The prompt is computed, and with it one token: from now on one more a step. Of an embedding that is all."""
        if sequence.generated == 0:
            self._prompt_total += sequence.prompt_tokens
            self._cached_total += sequence.cached_tokens
        if not sequence.execution.begun:
            sequence.execution.begun = True
            self._outbox.append(FirstToken(sequence.execution.id, now_s))
        if not sequence.output_tokens:
            self._leave_batch(sequence)
            self._leave_engine(sequence, ENDED, now_s)
            return
        self._prefilling.remove(sequence)
        sequence.place = DECODE
        sequence.generated += 1
        sequence.joined_step = self._steps
        self._decoding += 1
        self._context_tokens += sequence.computed
        self._output_total += 1
        room = (sequence.private_blocks + len(sequence.named)) * self.block_tokens - sequence.computed
        self._file_need(sequence, self._steps + room + 1)
        self._report(sequence, now_s)

    def _report(self, sequence: EngineSequence, now_s: float) -> None:
        generated = sequence.generated + self._steps - sequence.joined_step
        self._outbox.append(Tokens(sequence.execution.id, sequence.sample, generated - sequence.reported, now_s))
        sequence.reported = generated
        left = sequence.output_tokens - generated
        if left == 0:
            self._leave_batch(sequence)
            self._leave_engine(sequence, ENDED, now_s)
            return
        sequence.due_step = self._steps + min(left, self._settings.report_tokens)
        self._due.setdefault(sequence.due_step, {})[sequence] = None

    def _leave_engine(self, sequence: EngineSequence, reason: str, now_s: float) -> None:
        sequence.place = GONE
        execution = sequence.execution
        execution.inside -= 1
        self.inside -= 1
        if execution.inside == 0:
            del self._executions[execution.id]
            self._aborting.pop(execution.id, None)
            self._outbox.append(Finished(execution.id, reason, now_s))

    def _drop(self, execution: str, now_s: float) -> None:
        """An abort takes effect: everything of the execution leaves, wherever it is."""
        for sequence in self._executions[execution].sequences:
            if sequence.place == WAITING:
                self._waiting.pop(sequence, None)
            elif sequence.place != GONE:
                self._leave_batch(sequence)
            if sequence.place != GONE:
                self._leave_engine(sequence, ABORTED, now_s)

    # What is seen, and what is.

    def _look(self) -> Gauges:
        return Gauges(
            incarnation=self.incarnation,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_used_ratio=self._pool.used / self._pool.total,
            iterations=self._steps,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_total,
            cached_tokens=self._cached_total,
            output_tokens=self._output_total,
        )

    def sample(self, now_s: float) -> Gauges:
        self._run_until(now_s)
        return self._gauges

    def held(self, now_s: float) -> dict[str, Held]:
        self._run_until(now_s)
        held = {}
        for execution in self._executions.values():
            blocks = sum(one.private_blocks + len(one.named) for one in execution.sequences)
            held[execution.id] = Held(execution.inside, self.block_tokens * blocks)
        return held

    def used_tokens(self) -> int:
        return self._pool.used * self.block_tokens

    def course(self, now_s: float) -> Course:
        """What lies before it, with every output known in advance: for the clairvoyant baseline alone."""
        self._run_until(now_s)
        inside = [one for entry in self._executions.values() for one in entry.sequences if one.place != GONE]
        return course_of(inside, self._steps, self._decoding, self._context_tokens)

    # Faults.

    def restart(self, now_s: float) -> list[str]:
        self._run_until(now_s)
        lost = list(self._executions)
        self._stand_up()
        return lost

    def pause(self, now_s: float) -> None:
        self._run_until(now_s)
        if self._paused_s is None:
            self._paused_s = now_s

    def resume(self, now_s: float) -> None:
        if self._paused_s is None:
            return
        stood_s, self._paused_s = now_s - self._paused_s, None
        if self._step_end_s is not None:
            self._step_end_s = on_grid_s(self._step_end_s + stood_s)
        else:
            self._begin_step(now_s)

    def slow(self, factor: float) -> None:
        assert factor > 0
        self._factor = factor
