"""What is held only while a prompt is read (B7): it comes back at the start, once, and the rest stays until the end."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.commands import Answer, Cancel, Heartbeat, Reserve, SetLimits, Shortfall, Start, Stop
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, RESTARTED, SECOND, Ledger, Opened, reserve, used

REPLICA = "replica:pool/0"
CAPS = (Charge(REPLICA, "prefill_tokens", 8_000), Charge(REPLICA, "heavy_prefills", 1), Charge("pool:pool", "tokens", 100_000))


def reading(name: str, prompt_tokens: int, *, owner: Owner = FIRST, heavy: bool = True) -> Reserve:
    """A request whose prompt is counted while it is read."""
    read = [Charge(REPLICA, "prefill_tokens", prompt_tokens)]
    if heavy:
        read.append(Charge(REPLICA, "heavy_prefills", 1))
    whole = (Charge("pool:pool", "tokens", prompt_tokens + 100), Charge(REPLICA, "requests", 1))
    return reserve(name, prompt_tokens + 100, owner=owner, charges=(*whole, *read))


def opened_with_caps(opened: Opened, *owners: Owner) -> Ledger:
    ledger = Ledger(opened)
    ledger.limits = {"pool:pool": 100_000}
    ledger.ask(SetLimits("policy-1", 1, CAPS), *(Heartbeat(owner) for owner in owners or (FIRST,)))
    return ledger


def short(answer: Answer) -> tuple[str, tuple[Shortfall, ...]]:
    return answer.outcome, answer.shortfalls


def case_B7_comes_back_at_the_start_and_the_rest_at_the_end(opened: Opened) -> None:
    """5,000 are read; another 4,000 wait until the first token, and not until the end."""
    ledger = opened_with_caps(opened)
    assert ledger.outcome(reading("x", 5_000)) == "granted"
    wanting = (Shortfall(REPLICA, "prefill_tokens", 9_000, 8_000),)
    assert short(ledger.one(reading("y", 4_000, heavy=False))) == ("refused", wanting)
    assert ledger.outcome(Start("x", FIRST)) == "ok"
    assert ledger.held("pool:pool") == 5_100
    assert REPLICA in {charge.scope for charge in ledger.records(FIRST)["x"].charges}
    assert {charge.unit for charge in ledger.records(FIRST)["x"].charges} == {"tokens", "requests"}
    assert ledger.outcome(reading("y", 4_000, heavy=False)) == "granted"
    assert ledger.outcome(Start("x", FIRST)) == "recorded"
    assert short(ledger.one(reading("z", 4_001, heavy=False)))[0] == "refused", "it came back once"
    ledger.ask(Stop("x", FIRST, "E1", "completed", used(5_050)), Stop("y", FIRST, "E1", "completed", used(50)))
    assert ledger.held("pool:pool") == 0
    assert opened.check() == []


def case_B7_two_gateways_one_heavy_prompt(opened: Opened) -> None:
    """Room for one heavy prompt, two gateways: exactly one has it, whoever comes first."""
    ledger = opened_with_caps(opened, FIRST, SECOND)
    for number in range(200):
        owners = (FIRST, SECOND) if number % 2 else (SECOND, FIRST)
        answers = ledger.ask(*(reading(f"{number}-{owner.boot}", 1_000, owner=owner) for owner in owners))
        assert [answer.outcome for answer in answers] == ["granted", "refused"], number
        assert answers[1].shortfalls == (Shortfall(REPLICA, "heavy_prefills", 2, 1),)
        ledger.ask(Stop(answers[0].execution, owners[0], "E1", "completed", None))


def case_B7_longer_than_the_cap_is_read_alone(opened: Opened) -> None:
    """20,000 tokens against a cap of 8,000: not beside another, but never refused for good; nothing goes in beside it."""
    ledger = opened_with_caps(opened)
    ledger.ask(reading("short", 10, heavy=False))
    assert ledger.outcome(reading("long", 20_000)) == "refused"
    ledger.ask(Start("short", FIRST))
    assert ledger.outcome(reading("long", 20_000)) == "granted"
    assert opened.check() == []
    assert ledger.outcome(reading("other", 10, heavy=False)) == "refused"
    ledger.ask(Start("long", FIRST))
    assert ledger.outcome(reading("other", 10, heavy=False)) == "granted"
    assert opened.check() == []


def case_B7_unwanted_and_orphaned_prompts_are_held_until_they_are_seen_or_ended(opened: Opened) -> None:
    """A cancel says nothing about the reading; a first token does, whoever is charged for it then."""
    ledger = opened_with_caps(opened, FIRST, SECOND)
    ledger.ask(reading("x", 5_000), Cancel("x", FIRST))
    assert ledger.outcome(reading("y", 5_000)) == "refused"
    assert ledger.one(Start("x", FIRST)).state == "CANCELLING"
    assert ledger.outcome(reading("y", 5_000)) == "granted"
    ledger.advance(LEASE_MS, SECOND)
    assert ledger.outcome(reading("z", 5_000, owner=SECOND)) == "refused", "y is an orphan, and may still be read"
    ledger.ask(Stop("y", SECOND, "E3a", "cancelled", None))
    assert ledger.outcome(reading("z", 5_000, owner=SECOND)) == "granted"
    assert opened.check() == []


def case_B7_a_restart_forgets_neither_what_is_read_nor_that_it_was(opened: Opened) -> None:
    """The process is killed: one prompt is still being read, of the other only the answer is held."""
    ledger = opened_with_caps(opened)
    ledger.ask(reading("seen", 5_000), Start("seen", FIRST), reading("read", 6_000))
    ledger.store = opened.reopen()
    ledger.ask(SetLimits("policy-1", 1, CAPS), Heartbeat(RESTARTED))
    assert opened.check() == []
    wanting = (Shortfall(REPLICA, "prefill_tokens", 9_000, 8_000),)
    assert short(ledger.one(reading("new", 3_000, owner=RESTARTED, heavy=False))) == ("refused", wanting)
    assert ledger.outcome(reading("new", 2_000, owner=RESTARTED, heavy=False)) == "granted"
    assert ledger.held("pool:pool", RESTARTED) == 5_100 + 6_100 + 2_100


READING_CASES: tuple[Callable[[Opened], None], ...] = (
    case_B7_comes_back_at_the_start_and_the_rest_at_the_end,
    case_B7_two_gateways_one_heavy_prompt,
    case_B7_longer_than_the_cap_is_read_alone,
    case_B7_unwanted_and_orphaned_prompts_are_held_until_they_are_seen_or_ended,
    case_B7_a_restart_forgets_neither_what_is_read_nor_that_it_was,
)
