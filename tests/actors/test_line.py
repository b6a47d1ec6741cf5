"""The line finds whom a look at everybody would find."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gaoler.actors.policy.line import Line, Waiting
from gaoler.actors.policy.slots import Room, SlotRequest

SMALL = st.integers(0, 4)


class LineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.all: dict[str, SlotRequest] = {}
        self.number = 0

    @rule(slots=SMALL, memory=SMALL, budget=SMALL, count=st.integers(1, 20))
    def add(self, slots: int, memory: int, budget: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            request = SlotRequest(f"t{self.number}", "interactive", slots, memory, budget)
            self.all[request.ticket] = request
            self.line.add(Waiting(request, self.number))

    @precondition(lambda self: self.all)
    @rule(data=st.data(), count=st.integers(1, 15))
    def remove(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.all))):
            ticket = data.draw(st.sampled_from(list(self.all)))
            del self.all[ticket]
            self.line.remove(ticket)

    @rule(slots=SMALL, memory=SMALL, budget=SMALL)
    def find(self, slots: int, memory: int, budget: int) -> None:
        room = Room(slots, memory)
        expected = next(
            (
                request
                for request in self.all.values()
                if room.holds(request.room) and request.budget_ms <= budget
            ),
            None,
        )
        found = self.line.first_within(room, budget)
        assert (None if found is None else found.request) == expected

    @invariant()
    def it_holds_what_it_says(self) -> None:
        self.line.check()
        assert [waiting.request for waiting in self.line] == list(self.all.values())
        head = self.line.head()
        assert (None if head is None else head.request) == next(iter(self.all.values()), None)


TestLine = LineMachine.TestCase
TestLine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_long_line_is_looked_through_without_looking_at_everybody() -> None:
    """Counted, not timed: one small one behind thousands that are alike."""
    line = Line()
    for number in range(5_000):
        line.add(Waiting(SlotRequest(f"t{number}", "interactive", 4, 100, 1_000), 0))
    small = Waiting(SlotRequest("small", "interactive", 1, 1, 10), 0)
    line.add(small)
    looks = _counted(line)
    assert line.first_within(Room(1, 10), 100) is small
    assert line.first_within(Room(1, 10), 5) is None
    assert len(looks) < 60


def _counted(line: Line) -> list[int]:
    """Every node that is looked at from now on."""
    looks: list[int] = []

    class Counted(list[tuple[int, int, int]]):
        def __getitem__(self, node):  # type: ignore[no-untyped-def]
            looks.append(node)
            return super().__getitem__(node)

    line._least = Counted(line._least)
    return looks
