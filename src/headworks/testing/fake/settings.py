"""What a fake engine is like, and what is wrong with it at the moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headworks.sim.presets import BatchingSettings, FixedRateSettings, vllm_cpu_tiny
from headworks.testing.fake.generation import Fault

ALWAYS = -1


def like_the_real_one() -> BatchingSettings:
    """The CPU preset. A sequence leaves one to three iterations after its client's FIN, as measured; here always three."""
    return replace(vllm_cpu_tiny(), abort_lag_steps=2)


@dataclass(slots=True)
class FakeSettings:
    """One fake engine. Everything here stays as it is while it runs; what changes is in `Faults`."""

    engine: BatchingSettings | FixedRateSettings = field(default_factory=like_the_real_one)
    model_name: str = "tiny"
    context_tokens: int = 4096
    version: str = "0.32.0"
    speed: float = 1.0
    """Model seconds per real second."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    natural_tokens: int | None = None
    """An answer ends by itself (`stop`) after so many tokens unless `ignore_eos` is asked; None: never before its limit."""
    ignore_abort: bool = False
    """A client that leaves is not noticed: this side stays open and the request runs to its end."""
    close_but_run: bool = False
    """This side closes, and the request runs to its end nevertheless, as behind a proxy: the clock proof would lie."""
    developer_routes: bool = False
    """Adds `POST /abort_requests`."""
    keep_alive_s: float = 5.0
    part_tokens: int = 0
    """What an image, or a piece of audio, becomes; 0: this model reads text alone."""


@dataclass(slots=True)
class Faults:
    """What a test has broken. `heal` puts a new one in its place."""

    kind: str = ""
    after_tokens: int = 0
    times: int = 0
    """How many more answers go wrong, `ALWAYS` for all."""
    busy_times: int = 0
    busy_inside: bool = False
    """A stream is refused by its first event, in an answer with status 200: so do valves that look after the head is sent."""
    busy_retry_after: str = ""
    """What a busy answer has as `Retry-After`, as one that came through a proxy may."""
    dropped_series: set[str] = field(default_factory=set)
    renamed_series: dict[str, str] = field(default_factory=dict)
    core_dead: bool = False
    draining: bool = False

    def next_fault(self) -> Fault | None:
        """The fault of the answer that begins now."""
        if self.times == 0:
            return None
        self.times -= self.times > 0
        return Fault(self.kind, self.after_tokens)

    def next_busy(self) -> bool:
        """Whether the request at the door is to be refused although there is room."""
        if self.busy_times == 0:
            return False
        self.busy_times -= self.busy_times > 0
        return True
