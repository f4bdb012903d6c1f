"""The parts of a book as JSON-able values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headworks.core.book_counters import UNLIMITED, Counters
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_proof import Replica, Sample
from headworks.core.book_sessions import TOKENS, OpenSession
from headworks.core.book_table import CHARGED, STOPPED
from headworks.core.commands import Floor
from headworks.core.types import Charge, Owner, RequestKey, Usage

_ENTRY = (
    *("execution", "state", "fingerprint", "was", "seen", "pool", "replica", "incarnation", "cost_tokens", "evidence"),
    *("reserved_ms", "started_ms", "ended_ms", "forget_ms", "running_sequence", "closing_sequence", "closing_ms"),
)
_SESSION = (
    *("scope", "pool", "tokens", "spent_tokens", "unspent_tokens", "returned_tokens", "ended"),
    *("idle_ms", "idle_until_ms", "until_ms", "forget_ms"),
)
_BOOT = ("alive", "departed", "lease_until_ms", "gone_ms", "seen_sequence")
_REPLICA = (
    *("name", "reader_until_ms", "undecided", "yield_until_ms", "yield_from_ms", "foreign", "foreign_samples"),
    *("impossible", "several", "incarnation"),
)


def entry_value(entry: Entry) -> dict[str, Any]:
    """One execution."""
    usage = entry.usage
    return {name: getattr(entry, name) for name in _ENTRY} | {
        "key": entry.key,
        "owner": entry.owner,
        "reserved_by": entry.reserved_by,
        "charges": list(entry.charges),
        "flow": entry.flow,
        "weights": entry.weights,
        "steps": None if entry.steps is None else list(entry.steps),
        "usage": usage
        and [usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, usage.engine_s, usage.end, usage.exact],
    }


def entry_from(value: Any, counters: Counters) -> Entry:
    """The execution of such a value, charged again if it was."""
    key = RequestKey(*value["key"]) if value["key"] else None
    entry = Entry.of(value["execution"], value["state"], key, value["fingerprint"], Owner(*value["owner"]))
    for name in _ENTRY:
        setattr(entry, name, value[name])
    entry.reserved_by = Owner(*value["reserved_by"])
    entry.charges = tuple(Charge(*charge) for charge in value["charges"])
    entry.flow = (value["flow"][0], value["flow"][1]) if value["flow"] else None
    entry.weights = (value["weights"][0], value["weights"][1])
    entry.steps = None if value["steps"] is None else dict.fromkeys(value["steps"])
    entry.usage = Usage(*value["usage"]) if value["usage"] else None
    if entry.state in CHARGED:
        entry.counters = counters.force(entry.charges, restoring=True)
    return entry


def only_name(execution: str, forget_ms: int) -> Entry:
    """An execution of which no more is known than that it has ended."""
    entry = Entry.of(execution, STOPPED, None, "", Owner("", ""))
    entry.forget_ms = forget_ms
    return entry


def session_value(session: OpenSession) -> dict[str, Any]:
    """One session."""
    names = {"flow": session.flow, "weights": session.weights, "scopes": session.scopes}
    return {name: getattr(session, name) for name in _SESSION} | names


def session_from(value: Any, counters: Counters) -> OpenSession:
    """The session of such a value, with what it holds charged again."""
    flow, weights = (value["flow"][0], value["flow"][1]), (value["weights"][0], value["weights"][1])
    session = OpenSession(value["scope"], value["pool"], flow, weights, tuple(value["scopes"]))
    for name in _SESSION:
        setattr(session, name, value[name])
    counters.move(session.scopes, TOKENS, session.unspent_tokens)
    return session


def boot_value(boot: Boot) -> dict[str, Any]:
    """One boot, with the names of what it owns, in order."""
    plain = {name: getattr(boot, name) for name in _BOOT}
    named = {"owner": boot.owner, "unvouched": boot.unvouched, "entries": list(boot.entries)}
    return plain | named | {"profiles": [[replica, list(profile)] for replica, profile in boot.profiles]}


def boot_from(value: Any, entries: Mapping[str, Entry]) -> Boot:
    """The boot of such a value."""
    boot = Boot(Owner(*value["owner"]))
    for name in _BOOT:
        setattr(boot, name, value[name])
    boot.unvouched = tuple(value["unvouched"])
    boot.profiles = tuple((replica, tuple(profile)) for replica, profile in value.get("profiles", ()))
    boot.entries = {name: entries[name] for name in value["entries"]}
    return boot


def replica_value(replica: Replica) -> dict[str, Any]:
    """One replica, with the names of what it holds, in order."""
    samples = [[one.load, one.after_sequence, one.sequence, one.at_ms] for one in replica.samples]
    return {name: getattr(replica, name) for name in _REPLICA} | {
        "entries": list(replica.entries),
        "reader": replica.reader,
        "ended": list(replica.ended),
        "samples": samples,
        "incarnations": list(replica.incarnations),
    }


def replica_from(value: Any, entries: Mapping[str, Entry]) -> Replica:
    """The replica of such a value."""
    replica = Replica(value["name"])
    for name in _REPLICA:
        setattr(replica, name, value[name])
    replica.entries = {name: entries[name] for name in value["entries"]}
    replica.reader = Owner(*value["reader"]) if value["reader"] else None
    for sequence, charges in value["ended"]:
        replica.ended.append((sequence, tuple(Charge(*charge) for charge in charges)))
    replica.samples.extend(Sample(*sample) for sample in value["samples"])
    replica.incarnations.extend(value["incarnations"])
    return replica


def limits_value(counters: Counters) -> dict[str, Any]:
    """Limits, floors, excesses and what is committed; what is held besides is the sum of the executions."""
    limited = [one for one in counters.all() if one.limit != UNLIMITED]
    limited.sort(key=lambda one: (one.scope, one.unit))
    return {
        "limits": [[one.scope, one.unit, one.limit, one.excess, one.committed] for one in limited],
        "floors": list(counters.floors),
    }


def restore_limits(counters: Counters, value: Any) -> None:
    """Into counters that hold nothing yet."""
    limits = [Charge(scope, unit, limit) for scope, unit, limit, _, _ in value["limits"]]
    committed = [Charge(scope, unit, amount) for scope, unit, _, _, amount in value["limits"]]
    counters.set(limits, tuple(Floor(*floor) for floor in value["floors"]), committed)
    for charge, (_, _, _, excess, _) in zip(counters.find(limits), value["limits"], strict=True):
        charge.excess = excess
