"""What operators have ordered, in a shared ledger's store, for every gateway of its domain (F13, D4).

Each subject (a tenant, a replica, the mode) has one word there, the last; what takes another back is a word as well. Of two the
later one counts, wherever they meet, and of two of one instant the one whose text has the larger digest: the store takes no
lower one, nor does a gateway. So it does not matter in which order they come or how often, and gateways that know what a store
has forgotten tell it again (docs/decisions/0058).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headworks.ledgers.errors import LedgerError

WORDS_MAX = 4096
"""Subjects in a domain. Beyond, a word about another one is this gateway's alone."""
TIE_DIGITS = 12
"""Of a digest, in hexadecimal: as many as a number of Lua's holds exactly."""
_TELL = """#!lua
local function tie(word)
  return tonumber(string.sub(redis.sha1hex(word), 1, 12), 16)
end
for at = 2, #ARGV, 3 do
  local stood = redis.call("HGET", KEYS[1], ARGV[at])
  local since, word = string.match(stood or "-1 ", "^(%S+) (.*)$")
  local since_ms, at_ms = tonumber(since), tonumber(ARGV[at + 1])
  local counts = since_ms < at_ms or (since_ms == at_ms and tie(word) < tie(ARGV[at + 2]))
  if counts and (stood or redis.call("HLEN", KEYS[1]) < tonumber(ARGV[1])) then
    redis.call("HSET", KEYS[1], ARGV[at], ARGV[at + 1] .. " " .. ARGV[at + 2])
  end
end
return redis.call("HGETALL", KEYS[1])"""
"""Without `no-writes`: a replica, which may be behind, does not answer."""


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order: what, of what, by whom, why and when."""

    verb: str
    subject: str
    actor: str
    reason: str
    utc: str
    at_ms: int
    """Unix time; never before that of the word it follows."""
    taken_back: bool = False
    """Of the mode: what was ordered before it holds no more, and nothing in its place but the configuration."""

    def place(self) -> tuple[int, int]:
        """Of two words about one subject the one with the larger counts, for everybody."""
        digest = hashlib.sha1(msgspec.json.encode(self), usedforsecurity=False).hexdigest()
        return self.at_ms, int(digest[:TIE_DIGITS], 16)


class ValkeyOrders:
    """`ask` sends one command to the server and raises `LedgerError` if nobody answers."""

    def __init__(self, root: str, ask: Callable[..., Awaitable[object]]) -> None:
        self._place = f"{root}:orders"
        self._ask = ask

    async def tell(self, words: Mapping[str, Word]) -> dict[str, Word]:
        """Tell these, by what they are about. Returns all that stand there then."""
        told = [part for about, word in words.items() for part in (about, word.at_ms, msgspec.json.encode(word))]
        flat = await self._ask("EVAL", _TELL, 1, self._place, WORDS_MAX, *told)
        assert isinstance(flat, list)
        try:
            pairs = zip(flat[::2], flat[1::2], strict=True)
            return {about.decode(): msgspec.json.decode(blob.partition(b" ")[2], type=Word) for about, blob in pairs}
        except msgspec.DecodeError as error:
            raise LedgerError(f"An order in {self._place} is damaged: {error}") from error
