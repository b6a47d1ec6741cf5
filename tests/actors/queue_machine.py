"""Whatever comes in whatever order: the queue against its rules, written down once more.

`Account` is those rules in their plainest form, with nothing indexed and everything computed
anew.  `QueueMachine` drives a SlotPolicy beside it, and every decision must be the one that
the account says is next.  On top of that the promises are held that the rules are there for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gaoler.actors.policy.picture import picture
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import ClassRules, Decision, Grant, QueueRules, SlotRequest

MS = 1_000_000
AGING_MS = 50
SLACK_MS, TEARDOWN_MS = 3, 7


CLASSES = ("interactive", "grading")
MOST = 10**18

Amount = tuple[int, int, int, int]  # slots, memory, and those of them below grading's ceiling


def amount(request: SlotRequest) -> Amount:
    grading = request.priority == "grading"
    slots, memory = request.slots, request.memory_bytes
    return slots, memory, slots * grading, memory * grading


@dataclass
class Run:
    """What a request holds."""

    request: SlotRequest
    granted_ns: int
    slots: bool = True
    memory: bool = True

    @property
    def end_ns(self) -> int:
        """When it is over, whatever happens."""
        return self.granted_ns + (self.request.budget_ms + SLACK_MS + TEARDOWN_MS) * MS


@dataclass
class Account:
    """The written rules, and the state that they need."""

    rules: QueueRules
    now_ns: int = 0
    waiting: dict[str, SlotRequest] = field(default_factory=dict)  # in the order of arrival
    since_ns: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    passed: bool = False  # a grading one went first, and no interactive one since
    head: str | None = None
    promises: dict[str, int | None] = field(default_factory=dict)  # by ticket
    interrupted: set[str] = field(default_factory=set)  # of those: another one came before it
    held_back: str | None = None
    opens_ns: int | None = None  # for the one that is held back

    def line(self, priority: str) -> list[SlotRequest]:
        return [each for each in self.waiting.values() if each.priority == priority]

    def free(self, but: Collection[str] = ()) -> Amount:
        """What is left, were the slots and memory of `but` back as well."""
        rules = self.rules
        left = [rules.slots, rules.memory_bytes, min(rules.slots, rules.grading_slots), MOST]
        if rules.grading_memory_bytes is not None:
            left[3] = min(rules.memory_bytes, rules.grading_memory_bytes)
        for ticket, run in self.runs.items():
            if ticket not in but:
                held = amount(run.request)
                kept = (run.slots, run.memory, run.slots, run.memory)
                left = [a - b * k for a, b, k in zip(left, held, kept, strict=True)]
        return left[0], left[1], left[2], left[3]

    def fits(self, request: SlotRequest, but: Collection[str] = ()) -> bool:
        return all(map(operator.le, amount(request), self.free(but)))

    def below_ceiling(self, request: SlotRequest, but: Collection[str] = ()) -> bool:
        return all(map(operator.le, amount(request)[2:], self.free(but)[2:]))

    def first(self) -> SlotRequest | None:
        """Rules 1 to 3."""
        interactive, grading = self.line("interactive")[:1], self.line("grading")[:1]
        if grading and not self.below_ceiling(grading[0]):
            grading = []
        if not (interactive and grading):
            return next(iter(interactive + grading), None)
        aged = self.now_ns >= self.since_ns[grading[0].ticket] + AGING_MS * MS
        return (grading if aged and not self.passed else interactive)[0]

    def look(self) -> None:
        """Note who has become the head, and what it is promised."""
        firsts = [line[0].ticket for line in map(self.line, CLASSES) if line]
        self.promises = {t: ns for t, ns in self.promises.items() if t in firsts}
        first = self.first()
        self.head = None
        if first is not None and not self.fits(first):
            self.head = first.ticket
            if self.promises.get(first.ticket) is None:
                self.promise(first)
        self.interrupted |= self.promises.keys() - {self.head}
        grading = self.line("grading")[:1]
        if not grading or self.below_ceiling(grading[0]):
            self.held_back, self.opens_ns = None, None
        elif grading[0].ticket != self.held_back:
            self.held_back = grading[0].ticket
            self.opens_ns = self.when(lambda but: self.below_ceiling(grading[0], but))

    def promise(self, head: SlotRequest) -> None:
        start_ns = self.promises[head.ticket] = self.when(lambda but: self.fits(head, but))
        longest_ms = max((run.request.budget_ms for run in self.runs.values()), default=0)
        most_ns = self.now_ns + (longest_ms + SLACK_MS + TEARDOWN_MS) * MS
        assert start_ns is None or start_ns <= most_ns, "more than the longest"

    def when(self, there_is: Callable[[list[str]], bool]) -> int | None:
        """When enough is over, whatever happens; None where it never is."""
        over: list[str] = []
        running = [ticket for ticket, run in self.runs.items() if run.slots]
        for ticket in sorted(running, key=lambda ticket: self.runs[ticket].end_ns):
            over.append(ticket)
            if there_is(over):
                return max(self.runs[ticket].end_ns, self.now_ns)
        return None

    def promised_ns(self, but: str) -> int | None:
        """By when whoever goes out of turn must be over; its own promise does not bind it."""
        others = [ns for ticket, ns in self.promises.items() if ticket != but]
        return min((ns for ns in others if ns is not None), default=None)

    def next(self) -> SlotRequest | None:
        """Who must be served now: who is first, else the first who may go before the head."""
        first = self.first()
        if first is not None and self.fits(first):
            return first
        in_order = self.line("interactive") + self.line("grading")
        return next((each for each in in_order if each != first and self.may_go(each)), None)

    def may_go(self, request: SlotRequest) -> bool:
        """Rules 4 and 5."""
        end_ns = self.now_ns + (request.budget_ms + SLACK_MS + TEARDOWN_MS) * MS
        if not self.fits(request):
            return False
        promised_ns = self.promised_ns(request.ticket)
        if promised_ns is not None and end_ns > promised_ns:
            return False
        if request.priority == "interactive" or request == self.line("grading")[0]:
            return True
        oldest = self.line("grading")[0]
        if oldest.ticket == self.held_back:
            return self.opens_ns is not None and end_ns <= self.opens_ns
        both = zip(amount(oldest)[2:], amount(request)[2:], self.free()[2:], strict=True)
        return all(mine + theirs <= left for mine, theirs, left in both)

    def grant(self, request: SlotRequest) -> None:
        if request == self.first():
            if request.priority == "interactive":
                self.passed = False
            elif self.line("interactive"):
                assert not self.passed, "an interactive head was passed twice"
                self.passed = True
            self.promises, self.interrupted = {}, set()
        self.forget(request.ticket)
        self.runs[request.ticket] = Run(request, self.now_ns)

    def forget(self, ticket: str) -> SlotRequest:
        del self.since_ns[ticket]
        return self.waiting.pop(ticket)


class QueueMachine(RuleBasedStateMachine):
    """Drives a policy through arrivals, finishes, withdrawals, quarantines and time."""

    policy_class = SlotPolicy

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    @initialize(
        slots=st.sampled_from([1, 2, 2, 3, 4]),
        memory=st.sampled_from([8, 8, 4, 2]),
        grading_slots=st.sampled_from([1, 1, 2, 3]),
        spared=st.sampled_from([0, 0, 1, 4]),
        limits=st.sampled_from([(6, 6), (6, 6), (6, 6), (1, 2), (2, 0), (0, 1)]),
    )
    def begin(
        self, slots: int, memory: int, grading_slots: int, spared: int, limits: tuple[int, int]
    ) -> None:
        self.start(slots, memory, grading_slots, spared, limits)

    def start(
        self, slots: int, memory: int, grading_slots: int, spared: int, limits: tuple[int, int]
    ) -> None:
        rules = QueueRules(
            slots=slots,
            memory_bytes=memory,
            grading_slots=grading_slots,
            aging_ms=AGING_MS,
            interactive=ClassRules(limits[0], allowance_ms=200),
            grading=ClassRules(limits[1], allowance_ms=400),
            slack_ms=SLACK_MS,
            teardown_ms=TEARDOWN_MS,
            grading_memory_bytes=max(1, memory - spared),
        )
        self.account = Account(rules)
        self.policy = self.policy_class(rules)

    # --- what can happen ------------------------------------------------------------------

    @rule(
        grading=st.booleans(),
        slots=st.sampled_from([1, 1, 1, 1, 2, 2, 3, 5]),
        memory=st.sampled_from([1, 1, 1, 0, 2, 4, 9]),
        budget_ms=st.sampled_from([100, 60, 20, 10, 1]),
        wait=st.sampled_from([True, True, True, True, False]),
    )
    def come(self, grading: bool, slots: int, memory: int, budget_ms: int, wait: bool) -> None:
        self.arrive(grading, slots, memory, budget_ms, wait)

    def arrive(self, grading: bool, slots: int, memory: int, budget_ms: int, wait: bool) -> None:
        self.number += 1
        ticket, account = f"t{self.number}", self.account
        priority = "grading" if grading else "interactive"
        request = SlotRequest(ticket, priority, slots, memory, budget_ms, wait)
        account.waiting[ticket] = request
        account.since_ns[ticket] = account.now_ns
        self.hear(self.policy.enqueue(request, account.now_ns))
        assert wait or ticket not in account.waiting, "a request that would not wait is waiting"
        limit = account.rules.of(priority).queue_limit
        assert len(account.line(priority)) <= limit, "a queue is over its limit"

    @precondition(lambda self: self.account.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(list(self.account.waiting)))
        self.account.forget(ticket)
        self.hear(self.policy.withdraw(ticket, self.account.now_ns))

    @precondition(lambda self: self.account.runs)
    @rule(data=st.data(), memory=st.sampled_from([True, True, True, True, False]))
    def finish(self, data: st.DataObject, memory: bool) -> None:
        """Without `memory` it stays in quarantine."""
        ticket = data.draw(st.sampled_from(list(self.account.runs)))
        self.end(ticket, memory=memory)

    @rule(milliseconds=st.sampled_from([1, 10, 25, 50, 200]))
    def time_passes(self, milliseconds: int) -> None:
        """Whoever comes to their end meanwhile ends then, and wakes are not missed."""
        self.pass_time(self.account.now_ns + milliseconds * MS)

    @rule()
    def time_passes_until_just_before_the_next_wake(self) -> None:
        wake_ns = self.policy.next_wake_ns(self.account.now_ns)
        if wake_ns is None or wake_ns - 1 <= self.account.now_ns:
            return
        end_ns = self.next_end_ns()
        if end_ns is None or wake_ns - 1 < end_ns:
            self.account.now_ns = wake_ns - 1
            assert self.policy.tick(self.account.now_ns) == [], "a wake was missed"

    # --- what must hold -------------------------------------------------------------------

    @invariant()
    def the_policy_holds_what_it_says(self) -> None:
        if not hasattr(self, "policy"):
            return
        self.policy.check()
        shown = picture(self.policy, self.account.now_ns)
        assert len(shown["waiting"]) == len(self.account.waiting)  # type: ignore[arg-type]
        assert len(shown["running"]) == len(self.account.runs)  # type: ignore[arg-type]
        assert shown["slots"]["free"] == self.account.free()[0]  # type: ignore[index]
        assert shown["memory_bytes"]["free"] == self.account.free()[1]  # type: ignore[index]

    @invariant()
    def nobody_waits_too_long(self) -> None:
        if not hasattr(self, "policy"):
            return
        account = self.account
        for ticket, request in account.waiting.items():
            allowance_ns = account.rules.of(request.priority).allowance_ms * MS
            assert account.now_ns < account.since_ns[ticket] + allowance_ns, "out of allowance"
        if account.head is not None and account.head not in account.interrupted:
            promised_ns = account.promises[account.head]
            if promised_ns is not None and not self.quarantine():
                assert account.now_ns <= promised_ns, "the head is past its promise"

    def teardown(self) -> None:
        """Once everything is given back, nobody waits."""
        if not hasattr(self, "policy"):
            return
        while self.account.runs:
            self.end(next(iter(self.account.runs)), memory=True)
        assert not self.account.waiting, "with nothing running, somebody waits"

    # --- the books ------------------------------------------------------------------------

    def quarantine(self) -> bool:
        return any(not run.slots for run in self.account.runs.values())

    def end(self, ticket: str, *, memory: bool) -> None:
        run = self.account.runs[ticket]
        run.slots, run.memory = False, run.memory and not memory
        if not run.memory:
            del self.account.runs[ticket]
        now_ns = self.account.now_ns
        self.hear(self.policy.release(ticket, now_ns, slots=True, memory=memory))
        assert self.policy.release(ticket, now_ns, slots=True, memory=False) == []

    def next_end_ns(self) -> int | None:
        return min((run.end_ns for run in self.account.runs.values() if run.slots), default=None)

    def pass_time(self, until_ns: int) -> None:
        account = self.account
        while True:
            self.check_wake()
            instants = [self.policy.next_wake_ns(account.now_ns), self.next_end_ns(), until_ns]
            at_ns = min(instant for instant in instants if instant is not None)
            account.now_ns = max(at_ns, account.now_ns)
            ending = [t for t, run in account.runs.items() if run.slots and run.end_ns <= at_ns]
            for ticket in ending:
                self.end(ticket, memory=True)
            self.hear(self.policy.tick(account.now_ns))
            if at_ns >= until_ns:
                return

    def check_wake(self) -> None:
        """Whoever ages while interactive ones wait must be looked at then."""
        grading = self.account.line("grading")
        if grading and self.account.line("interactive"):
            aged_ns = self.account.since_ns[grading[0].ticket] + AGING_MS * MS
            wake_ns = self.policy.next_wake_ns(self.account.now_ns)
            if aged_ns > self.account.now_ns:
                assert wake_ns is not None, "aging wakes nobody"
                assert wake_ns <= aged_ns, "aging is woken too late"

    def hear(self, decisions: list[Decision]) -> None:
        """Each decision must be the one that the rules say is next, and none may be missing."""
        account = self.account
        for decision in decisions:
            if isinstance(decision, Grant):
                account.look()
                request = account.next()
                assert request is not None, f"{decision} and nobody may go"
                assert decision.ticket == request.ticket, f"{decision}, next is {request}"
                account.grant(request)
            else:
                self.hear_refusal(decision.ticket, decision.cause)
        account.look()
        assert account.next() is None, f"{account.next()} may go and waits"

    def hear_refusal(self, ticket: str, cause: str) -> None:
        account = self.account
        since_ns = account.since_ns[ticket]  # KeyError: told twice, or a stranger
        request = account.forget(ticket)
        class_rules = account.rules.of(request.priority)
        match cause:
            case "expired":
                assert account.now_ns >= since_ns + class_rules.allowance_ms * MS
            case "no_slots":
                assert not request.wait
            case "queue_full":
                assert len(account.line(request.priority)) >= class_rules.queue_limit
            case _:
                assert not account.fits(request, account.runs.keys())


class NarrowMachine(QueueMachine):
    """The same with little to choose from, so that longer stories come about."""

    @initialize(
        slots=st.sampled_from([2, 3]),
        grading_slots=st.sampled_from([1, 2]),
        spared=st.sampled_from([0, 7]),
    )
    def begin(self, slots: int, grading_slots: int, spared: int) -> None:
        self.start(slots, 9, grading_slots, spared, (9, 9))

    @rule(grading=st.booleans(), slots=st.sampled_from([1, 1, 2]), long=st.booleans())
    def come(self, grading: bool, slots: int, long: bool) -> None:
        self.arrive(grading, slots, 2, 100 if long else 20, True)

    @rule(milliseconds=st.sampled_from([AGING_MS, 20]))
    def time_passes(self, milliseconds: int) -> None:
        self.pass_time(self.account.now_ns + milliseconds * MS)
