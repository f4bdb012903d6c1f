"""The bounded queue of one (class, tenant), and all queues of a pool together.

A queue buys time, not capacity: it is bounded in requests, in bytes and in age (B6). Entries stand in order of arrival;
leaving from the middle costs the same as from the front, because clients do leave.
"""

from __future__ import annotations

from collections import OrderedDict

from headworks.core.life import Life


class WaitingLine:
    """What one tenant has waiting in one class."""

    __slots__ = ("_by_number", "flow", "tokens")

    def __init__(self, flow: tuple[str, str]) -> None:
        self.flow = flow
        self.tokens = 0
        self._by_number: OrderedDict[int, Life] = OrderedDict()

    def add(self, life: Life) -> None:
        """Join at the life's own place: one that was asked for and not granted comes back to where it stood."""
        back_of_line = not self._by_number or next(reversed(self._by_number)) < life.number
        self._by_number[life.number] = life
        if not back_of_line:
            self._restore_order(life)
        self.tokens += life.work.tokens

    def _restore_order(self, life: Life) -> None:
        # Nearly always it came from the front; walking from there finds its place at once.
        self._by_number.move_to_end(life.number, last=False)
        ahead = []
        for number in self._by_number:
            if number == life.number:
                continue
            if number > life.number:
                break
            ahead.append(number)
        for number in reversed(ahead):
            self._by_number.move_to_end(number, last=False)

    def remove(self, life: Life) -> None:
        del self._by_number[life.number]
        self.tokens -= life.work.tokens

    def oldest(self) -> Life | None:
        return next(iter(self._by_number.values()), None)

    def newest(self) -> Life | None:
        return next(reversed(self._by_number.values()), None)

    def __len__(self) -> int:
        return len(self._by_number)

    def lives(self) -> list[Life]:
        """Everything waiting, in order of arrival."""
        return list(self._by_number.values())


class PoolQueue:
    """All that waits for one pool, by flow, with the totals that checks and forecasts need."""

    __slots__ = ("_class_bytes", "_class_requests", "lines", "requests", "tokens")

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], WaitingLine] = {}
        self.requests = 0
        self.tokens = 0
        self._class_requests: dict[str, int] = {}
        self._class_bytes: dict[str, int] = {}

    def add(self, life: Life) -> None:
        request, flow = life.request, life.lane.flow
        line = self.lines.get(flow)
        if line is None:
            line = self.lines[flow] = WaitingLine(flow)
        line.add(life)
        self.requests += 1
        self.tokens += life.work.tokens
        name = request.service_class
        self._class_requests[name] = self._class_requests.get(name, 0) + 1
        self._class_bytes[name] = self._class_bytes.get(name, 0) + request.prompt_bytes

    def remove(self, life: Life) -> None:
        request, flow = life.request, life.lane.flow
        line = self.lines[flow]
        line.remove(life)
        if not line:
            del self.lines[flow]
        self.requests -= 1
        self.tokens -= life.work.tokens
        self._class_requests[request.service_class] -= 1
        self._class_bytes[request.service_class] -= request.prompt_bytes

    def of_class(self, service_class: str) -> tuple[int, int]:
        """Requests and prompt bytes that a class has waiting."""
        if not self.requests:
            return 0, 0
        return self._class_requests.get(service_class, 0), self._class_bytes.get(service_class, 0)

    def flow_requests(self, flow: tuple[str, str]) -> int:
        line = self.lines.get(flow)
        return len(line) if line else 0

    def lives(self) -> list[Life]:
        """Everything waiting, in order of arrival over all flows."""
        found = [life for line in self.lines.values() for life in line.lives()]
        found.sort(key=_number)
        return found


def _number(life: Life) -> int:
    return life.number
