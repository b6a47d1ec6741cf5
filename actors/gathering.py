"""One picture out of several that come from different threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from gaoler.actors.life import hand_over

Picture = dict[str, object]


class Gathering:
    """Waits for every named part, then hands the whole over once."""

    def __init__(self, names: Iterable[str], reply: Callable[[Picture], None]) -> None:
        self._missing = set(names)
        self._reply = reply
        self._whole: Picture = {}
        self._lock = threading.Lock()

    def part(self, name: str) -> Callable[[Picture], None]:
        """What takes the part of that name, from any thread."""
        return lambda picture: self._add(name, picture)

    def _add(self, name: str, picture: Picture) -> None:
        with self._lock:
            self._missing.discard(name)
            self._whole[name] = picture
            if self._missing:
                return
        hand_over(self._reply, self._whole)
