"""The actor that tells a message on time."""

from __future__ import annotations

from gaoler.actors.clock import Clock
from gaoler.actors.life import OnFatal, Singleton, hand_over, tell
from gaoler.actors.messages import At, Forget, TimeUp
from gaoler.actors.policy.timetable import Timetable


class Alarm(Singleton):
    """Owns the timetable, and one timer that is always set to its next instant."""

    def __init__(self, clock: Clock, on_fatal: OnFatal) -> None:
        super().__init__(on_fatal)
        self._clock = clock
        self._timetable: Timetable[At] = Timetable()
        # The timer knows the reference alone: the actor must not be kept alive by it.
        reference = self.actor_ref
        self._timer = clock.start_timer(lambda: tell(reference, TimeUp()))

    def receive(self, message: object) -> None:
        match message:
            case At(name=name, when_ns=when_ns):
                self._timetable.set(name, when_ns, message)
            case Forget(name=name):
                self._timetable.forget(name)
            case TimeUp():
                self._tell_due()
            case _:
                self.ignore(message)
        self._timer.set(self._timetable.next_ns())

    def release(self, *, failed: bool) -> None:
        self._timer.stop()

    def _tell_due(self) -> None:
        for _, entry in self._timetable.pop_due(self._clock.now_ns()):
            hand_over(entry.tell, entry.message)
