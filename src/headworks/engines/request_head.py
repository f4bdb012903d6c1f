"""Heads of the requests that carry executions: made from scratch, nothing in them comes from a client.

But for the trace they belong to: lines that have been read, and are written anew (`gateway/trace_context.py`).
"""

from __future__ import annotations

PATHS_KEPT_MAX = 64


class PostHeads:
    """Those of one origin. What is the same for all of a path is written once."""

    __slots__ = ("_always", "_heads", "_path_before")

    def __init__(self, path_before: str, always: str) -> None:
        self._path_before = path_before
        self._always = always
        self._heads: dict[str, bytes] = {}

    def head(self, execution: str, path: str, body: bytes, lines: bytes = b"") -> bytes:
        """The head of one request. `lines`: of its trace, each with its end."""
        begun = self._heads.get(path)
        if begun is None:
            begun = self._begun(path)
            if len(self._heads) < PATHS_KEPT_MAX:
                self._heads[path] = begun
        return b"%b%b\r\nContent-Length: %d\r\n%b\r\n" % (begun, execution.encode("ascii"), len(body), lines)

    def _begun(self, path: str) -> bytes:
        text = (
            f"POST {self._path_before}{path} HTTP/1.1\r\n{self._always}Content-Type: application/json\r\n"
            "Accept: text/event-stream, application/json\r\nX-Request-Id: "
        )
        return text.encode("ascii")
