"""False refusals: an engine's run played again with a refused request in it."""

from __future__ import annotations

import pytest

from headworks.sim.insertion import Insertions, Playing, Promise, RecordedEngine, Refused
from headworks.sim.presets import tiny
from headworks.sim.traffic import Planned

TOKEN_S = 1.0


def played(*submissions: tuple[float, str, int, int], keep_at_s: float = 0.0) -> tuple[RecordedEngine, Playing]:
    """The engine of four places, 64 tokens and 10 ms a step, after these: when, who, prompt, output."""
    engine = RecordedEngine(tiny(), [keep_at_s])
    playing = Playing(engine, [])
    for at_s, name, prompt_tokens, output_tokens in submissions:
        while playing.step(at_s) is not None:
            pass
        engine.submit(name, prompt_tokens, output_tokens, 1, (), at_s)
    while playing.step(1e9) is not None:
        pass
    return engine, playing


def insertions(engine: RecordedEngine, playing: Playing, promises: dict[str, float]) -> Insertions:
    """`promises`: until when the first token of an execution of the actual run is due."""
    _, place, kept = engine.kept[0]
    known = {name: Promise(by_s, TOKEN_S, 100, playing.first_s[name]) for name, by_s in promises.items()}
    return Insertions(kept, place, engine.given, known, 5.0)


def refused(wish: int, at_s: float, prompt_tokens: int, promise_s: float, output_tokens: int = 2) -> Refused:
    return Refused(wish, at_s, Planned(at_s, 0, prompt_tokens, output_tokens, ()), promise_s, TOKEN_S)


def test_a_copy_and_the_same_things_to_do_give_the_same_run() -> None:
    engine, playing = played((0.0, "a", 100, 30), (0.015, "b", 60, 40), (0.1, "c", 20, 5), keep_at_s=0.01)
    at_s, place, kept = engine.kept[0]
    assert (at_s, place) == (0.015, 1)
    again = insertions(engine, playing, {})._base
    while again.step(1e9) is not None:
        pass
    assert again.ended_s == playing.ended_s and {**playing.first_s, **again.first_s} == playing.first_s
    assert kept


def test_who_finds_a_free_engine_was_refused_falsely() -> None:
    engine, playing = played((0.0, "a", 16, 2), (1.0, "b", 16, 2))
    found = insertions(engine, playing, {"a": 0.5, "b": 1.5})
    found.offer(refused(1, 0.5, 16, promise_s=0.1))
    assert (found.tried, found.inserted) == (1, {1})


def test_who_would_make_another_late_was_not_refused_falsely() -> None:
    """b arrives 1 ms after the refused one and has its first token after a step of its own; behind 128 tokens after three."""
    engine, playing = played((0.0, "a", 16, 2), (1.001, "b", 64, 2))
    assert playing.first_s["b"] < 1.012
    tight = insertions(engine, playing, {"b": 1.015})
    tight.offer(refused(1, 1.0, 128, promise_s=0.03))
    assert (tight.tried, tight.inserted) == (1, set())
    loose = insertions(engine, playing, {"b": 1.05})
    loose.offer(refused(1, 1.0, 128, promise_s=0.03))
    assert loose.inserted == {1}


def test_who_would_be_late_itself_was_not_refused_falsely() -> None:
    engine, playing = played((0.0, "a", 16, 2))
    found = insertions(engine, playing, {})
    found.offer(refused(1, 0.5, 256, promise_s=0.035))  # four steps of 64
    assert found.inserted == set()


@pytest.mark.parametrize(("token_s", "inserted"), [(0.0099, set()), (0.0101, {1})])
def test_who_would_get_its_tokens_too_slowly_was_not_refused_falsely(token_s: float, inserted: set[int]) -> None:
    """A token comes with each step of 10 ms, the first of its twenty well within its promise."""
    engine, playing = played((0.0, "a", 16, 2), (1.0, "b", 16, 2))
    found = insertions(engine, playing, {"a": 0.5, "b": 1.5})
    found.offer(Refused(1, 0.5, Planned(0.5, 0, 16, 20, ()), 0.1, token_s))
    assert (found.tried, found.inserted) == (1, inserted)


def test_it_is_tried_again_when_half_of_its_promise_is_over() -> None:
    """At its arrival it would push b past its time; 25 ms later it still has time enough, and b has its token already."""
    engine, playing = played((0.0, "a", 16, 2), (1.001, "b", 64, 2))
    found = insertions(engine, playing, {"b": 1.0125})
    found.offer(refused(1, 1.0, 64, promise_s=0.05))
    assert found.inserted == {1}


def test_what_was_inserted_stays_so_one_gap_is_counted_once() -> None:
    """Two of 128 tokens, each alone on time in two steps and within 25 ms; the second comes behind the first."""
    engine, playing = played((0.0, "a", 16, 2))
    found = insertions(engine, playing, {})
    found.offer(refused(1, 0.5, 128, promise_s=0.025))
    found.offer(refused(2, 0.5, 128, promise_s=0.025))
    assert (found.tried, found.inserted) == (2, {1})


def test_a_wish_that_is_in_is_not_tried_again() -> None:
    engine, playing = played((0.0, "a", 16, 2))
    found = insertions(engine, playing, {})
    found.offer(refused(1, 0.5, 16, promise_s=0.1))
    found.offer(refused(1, 0.9, 16, promise_s=0.1))
    assert (found.tried, found.inserted) == (1, {1})


def test_two_that_fit_beside_each_other_were_both_refused_falsely() -> None:
    engine, playing = played((0.0, "a", 16, 2))
    found = insertions(engine, playing, {})
    found.offer(refused(1, 0.5, 64, promise_s=0.025))
    found.offer(refused(2, 0.5, 60, promise_s=0.025))  # beside a token of the first
    found.offer(refused(3, 0.5, 64, promise_s=0.025))  # a third step would be too late
    assert found.inserted == {1, 2}


def test_who_is_pushed_back_beyond_its_end_counts_as_well() -> None:
    """It ends after one step, at 1.01 s. b, of four steps, has its first token at 1.041 s without it and at 1.05 s with it."""
    engine, playing = played((0.0, "a", 16, 2), (1.001, "b", 256, 2))
    for by_s, inserted in ((1.045, set()), (1.055, {1})):
        found = insertions(engine, playing, {"b": by_s})
        found.offer(refused(1, 1.0, 64, promise_s=0.019, output_tokens=1))
        assert found.inserted == inserted


def test_who_would_take_memory_back_from_another_was_not_refused_falsely_where_nothing_may_be_preempted() -> None:
    """a grows from 100 to 290 of 304 tokens; of another that begins with 100 both cannot stay to their ends."""
    engine, _ = played((0.0, "a", 100, 190))
    _, place, kept = engine.kept[0]
    for may_preempt, inserted in ((True, {1}), (False, set())):
        found = Insertions(kept, place, engine.given, {}, 10.0, may_preempt)
        found.offer(refused(1, 0.5, 100, promise_s=1.0, output_tokens=100))
        assert found.inserted == inserted
