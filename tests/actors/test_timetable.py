"""The heap of named entries, against a dict that does the same the slow way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gaoler.actors.policy.timetable import SLACK_ENTRIES, Timetable


def test_what_is_due_comes_in_the_order_of_its_instants() -> None:
    timetable: Timetable[str] = Timetable()
    for name, when_ns in (("c", 30), ("a", 10), ("b", 20)):
        timetable.set(name, when_ns, name.upper())
    assert timetable.pop_due(20) == [("a", "A"), ("b", "B")]
    assert timetable.next_ns() == 30


def test_an_entry_of_the_same_name_replaces_the_old_one() -> None:
    timetable: Timetable[int] = Timetable()
    timetable.set("x", 10, 1)
    timetable.set("x", 20, 2)
    assert timetable.pop_due(15) == []
    assert timetable.pop_due(20) == [("x", 2)]


def test_a_forgotten_entry_never_comes_and_forgetting_a_stranger_is_harmless() -> None:
    timetable: Timetable[int] = Timetable()
    timetable.set("x", 10, 1)
    timetable.forget("x")
    timetable.forget("stranger")
    assert timetable.next_ns() is None
    assert timetable.pop_due(100) == []


def test_entries_that_were_taken_back_do_not_pile_up() -> None:
    timetable: Timetable[int] = Timetable()
    for number in range(10_000):
        timetable.set(f"{number}", 10**9, number)
        timetable.forget(f"{number}")
        timetable.check()
    assert len(timetable._heap) <= SLACK_ENTRIES


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.integers(0, 20)),
        st.tuples(st.just("forget"), st.sampled_from("abcd"), st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(_ACTIONS)
def test_it_agrees_with_a_plain_dict(actions: list[tuple[str, str, int]]) -> None:
    timetable: Timetable[None] = Timetable()
    model: dict[str, int] = {}
    for action, name, when_ns in actions:
        if action == "set":
            timetable.set(name, when_ns, None)
            model[name] = when_ns
        elif action == "forget":
            timetable.forget(name)
            model.pop(name, None)
        else:
            due = {name for name, _ in timetable.pop_due(when_ns)}
            assert due == {name for name, at_ns in model.items() if at_ns <= when_ns}
            model = {name: at_ns for name, at_ns in model.items() if at_ns > when_ns}
        timetable.check()
        assert timetable.next_ns() == min(model.values(), default=None)
        assert len(timetable) == len(model)
