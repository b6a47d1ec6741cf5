"""How many requests of one key, or of one subject, are taken in a minute: token buckets."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NS_PER_MINUTE = 60 * NS_PER_S


def whole_seconds(wait_ns: int) -> int:
    """A wait as `Retry-After` says it: rounded up, at least 1."""
    return max(1, -(-wait_ns // NS_PER_S))


@dataclass(slots=True)
class _Bucket:
    """`credit` counts in token-nanoseconds: one token is NS_PER_MINUTE of it, so that the
    arithmetic is in whole numbers."""

    credit: int
    at_ns: int


class Rates:
    """One bucket for each name, with `per_minute` tokens that come back evenly.

    A full bucket lets `per_minute` requests go at once.  `per_minute` 0: no limit.

    Invariants: no bucket holds more than it can; a bucket that is full again is forgotten
    sooner or later, so nothing is kept of who has not been seen for a minute.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._full = per_minute * NS_PER_MINUTE
        self._buckets: OrderedDict[object, _Bucket] = OrderedDict()  # the latest seen is last

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: object, now_ns: int) -> int | None:
        """None: a token was taken.  Else the nanoseconds until there is one."""
        if not self._per_minute:
            return None
        self._forget(now_ns)
        bucket = self._filled(name, now_ns)
        if bucket.credit < NS_PER_MINUTE:
            return -(-(NS_PER_MINUTE - bucket.credit) // self._per_minute)
        bucket.credit -= NS_PER_MINUTE
        return None

    def hand_back(self, name: object) -> None:
        """A token that was taken is not spent after all."""
        bucket = self._buckets.get(name)
        if bucket is not None:  # else it is full by now
            bucket.credit = min(self._full, bucket.credit + NS_PER_MINUTE)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        assert all(0 <= bucket.credit <= self._full for bucket in self._buckets.values())
        seen = [bucket.at_ns for bucket in self._buckets.values()]
        assert seen == sorted(seen)

    def _filled(self, name: object, now_ns: int) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(self._full, now_ns)
        gained = (now_ns - bucket.at_ns) * self._per_minute
        bucket.credit = min(self._full, bucket.credit + gained)
        bucket.at_ns = now_ns
        self._buckets.move_to_end(name)
        return bucket

    def _forget(self, now_ns: int) -> None:
        """Who was last seen a minute ago has a full bucket.  Two a time keep up with one more."""
        for _ in range(2):
            oldest = next(iter(self._buckets.items()), None)
            if oldest is None or now_ns - oldest[1].at_ns < NS_PER_MINUTE:
                return
            del self._buckets[oldest[0]]
