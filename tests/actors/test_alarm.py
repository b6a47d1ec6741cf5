"""Alarm tells on time, and its timer wakes it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pykka
import pytest

from gaoler.actors.alarm import Alarm
from gaoler.actors.clock import MonotonicClock, Timer, VirtualClock
from gaoler.actors.messages import At, Forget, Message, Ping, Tick, Withdraw

LIMIT_S = 5.0
MS = 1_000_000


def no_fatal(name: str, error: BaseException | None) -> None:
    raise AssertionError(f"{name} died: {error}")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def alarm(clock: VirtualClock, _nothing_is_left: None) -> Iterator[pykka.ActorRef[Any]]:
    actor = Alarm.start(clock, no_fatal)
    yield actor
    actor.stop()


def read_all(actor: pykka.ActorRef[Any]) -> None:
    read = threading.Event()
    actor.tell(Ping(lambda _: read.set()))
    assert read.wait(LIMIT_S)


def test_messages_are_told_when_their_time_comes_and_not_before(
    alarm: pykka.ActorRef[Any], clock: VirtualClock
) -> None:
    told: queue.SimpleQueue[Message] = queue.SimpleQueue()
    alarm.tell(At("late", clock.now_ns() + 20 * MS, told.put, Withdraw("late")))
    alarm.tell(At("soon", clock.now_ns() + 10 * MS, told.put, Withdraw("soon")))
    read_all(alarm)
    clock.advance_ms(9)
    read_all(alarm)
    assert told.empty()
    clock.advance_ms(1)
    assert told.get(timeout=LIMIT_S) == Withdraw("soon")
    read_all(alarm)
    assert told.empty()
    clock.advance_ms(10)
    assert told.get(timeout=LIMIT_S) == Withdraw("late")


def test_a_time_that_has_passed_is_told_at_once(
    alarm: pykka.ActorRef[Any], clock: VirtualClock
) -> None:
    told: queue.SimpleQueue[Message] = queue.SimpleQueue()
    alarm.tell(At("past", clock.now_ns() - 1, told.put, Tick()))
    assert told.get(timeout=LIMIT_S) == Tick()


def test_forgotten_and_replaced_entries_are_not_told(
    alarm: pykka.ActorRef[Any], clock: VirtualClock
) -> None:
    told: queue.SimpleQueue[Message] = queue.SimpleQueue()
    when_ns = clock.now_ns() + 10 * MS
    alarm.tell(At("gone", when_ns, told.put, Withdraw("gone")))
    alarm.tell(Forget("gone"))
    alarm.tell(At("same", when_ns, told.put, Withdraw("old")))
    alarm.tell(At("same", when_ns, told.put, Withdraw("new")))
    read_all(alarm)
    clock.advance_ms(10)
    assert told.get(timeout=LIMIT_S) == Withdraw("new")
    read_all(alarm)
    assert told.empty()


def test_a_receiver_that_raises_does_not_end_the_alarm(
    alarm: pykka.ActorRef[Any], clock: VirtualClock
) -> None:
    def broken(message: Message) -> None:
        raise RuntimeError("a closed event loop")

    told: queue.SimpleQueue[Message] = queue.SimpleQueue()
    alarm.tell(At("broken", clock.now_ns(), broken, Tick()))
    alarm.tell(At("next", clock.now_ns(), told.put, Tick()))
    assert told.get(timeout=LIMIT_S) == Tick()


@pytest.fixture
def start_timer() -> Iterator[Callable[[Callable[[], object]], Timer]]:
    """Timers of the real clock, stopped when the test is over."""
    timers: list[Timer] = []

    def start(ring: Callable[[], object]) -> Timer:
        timers.append(MonotonicClock().start_timer(ring))
        return timers[-1]

    yield start
    for timer in timers:
        timer.stop()


def test_the_real_timer_rings_once_at_its_instant(
    start_timer: Callable[[Callable[[], object]], Timer],
) -> None:
    rings: queue.SimpleQueue[int] = queue.SimpleQueue()
    clock = MonotonicClock()
    when_ns = clock.now_ns() + 20 * MS
    start_timer(lambda: rings.put(clock.now_ns())).set(when_ns)
    assert rings.get(timeout=LIMIT_S) >= when_ns
    with pytest.raises(queue.Empty):
        rings.get(timeout=0.05)


def test_the_real_timer_heeds_an_earlier_instant_while_it_waits(
    start_timer: Callable[[Callable[[], object]], Timer],
) -> None:
    rung = threading.Event()
    timer = start_timer(rung.set)
    timer.set(MonotonicClock().now_ns() + 3_600_000 * MS)
    timer.set(MonotonicClock().now_ns() + 1 * MS)
    assert rung.wait(LIMIT_S)


def test_the_real_timer_can_be_taken_back(
    start_timer: Callable[[Callable[[], object]], Timer],
) -> None:
    rung = threading.Event()
    timer = start_timer(rung.set)
    timer.set(MonotonicClock().now_ns() + 30 * MS)
    timer.set(None)
    assert not rung.wait(0.06)


def test_with_the_real_clock_it_tells_on_time_and_leaves_no_thread() -> None:
    clock = MonotonicClock()
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    alarm = Alarm.start(clock, no_fatal)
    when_ns = clock.now_ns() + 10 * MS
    alarm.tell(At("soon", when_ns, lambda message: told.put(clock.now_ns()), Tick()))
    assert told.get(timeout=LIMIT_S) >= when_ns
    alarm.stop()
