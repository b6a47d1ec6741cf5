"""Bodies: how large, how slow, and how many of them together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from gaoler.http.body import (
    LARGE_BODY_BYTES,
    AdmittedBytes,
    Checking,
    Intake,
    check_headers,
    read_body,
)
from gaoler.http.errors import ClientGone, Problem


def intake(*messages: Mapping[str, Any] | bytes, ends: bool = True) -> Intake:
    """One that brings these pieces and then, unless the body ends with them, waits for ever."""
    waiting: list[Mapping[str, Any]] = []
    for index, each in enumerate(messages):
        more = not ends or index < len(messages) - 1
        if isinstance(each, bytes):
            each = {"type": "http.request", "body": each, "more_body": more}
        waiting.append(each)

    async def receive() -> Mapping[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return Intake(receive)


def stubborn() -> Intake:
    """One that has nothing but for who cancels it: a piece, as gunicorn's may on Python 3.11."""

    async def receive() -> Mapping[str, Any]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return {"type": "http.request", "body": b"x", "more_body": True}

    return Intake(receive)


def endless(piece: bytes) -> tuple[Intake, list[int]]:
    """One whose pieces never end, and the sizes of those that were read."""
    sizes: list[int] = []

    async def receive() -> Mapping[str, Any]:
        sizes.append(len(piece))
        return {"type": "http.request", "body": piece, "more_body": True}

    return Intake(receive), sizes


def read(
    source: Intake, whole: AdmittedBytes, limit_bytes: int = 100, timeout_ms: int = 10_000
) -> bytes:
    async def run() -> bytes:
        with whole.share() as share:
            whole.check()
            body = await read_body(source, share, limit_bytes, timeout_ms)
            assert whole.taken_bytes >= len(body)
            return bytes(body)

    try:
        return asyncio.run(run())
    finally:
        assert whole.taken_bytes == 0


def code(source: Intake, whole: AdmittedBytes | None = None, **more: int) -> tuple[int, str]:
    with pytest.raises(Problem) as refused:
        read(source, whole or AdmittedBytes(1000), **more)
    return refused.value.status, refused.value.code


def test_pieces_are_put_together() -> None:
    assert read(intake(b"ab", b"", b"c"), AdmittedBytes(100)) == b"abc"
    assert read(intake({"type": "http.request"}), AdmittedBytes(100)) == b""


def test_one_byte_too_many_is_a_413_at_once() -> None:
    assert read(intake(b"x" * 100), AdmittedBytes(1000)) == b"x" * 100
    source = intake(b"x" * 60, b"x" * 41, ends=False)
    assert code(source) == (413, "body_too_large")
    assert not source.complete


def test_a_body_that_stops_arriving_is_a_400() -> None:
    assert code(intake(b"x", ends=False), timeout_ms=10) == (400, "body_timeout")


def test_a_drip_feed_does_not_buy_time() -> None:
    async def receive() -> Mapping[str, Any]:
        await asyncio.sleep(0)  # a piece each turn of the loop, for ever
        return {"type": "http.request", "body": b"", "more_body": True}

    assert code(Intake(receive), timeout_ms=20) == (400, "body_timeout")


def test_the_time_is_kept_whatever_becomes_of_a_cancellation() -> None:
    assert code(stubborn(), timeout_ms=10) == (400, "body_timeout")


def test_a_piece_that_is_late_is_the_next_readers() -> None:
    async def run() -> bytes:
        comes = asyncio.Event()

        async def receive() -> Mapping[str, Any]:
            await comes.wait()
            return {"type": "http.request", "body": b"late"}

        source = Intake(receive)
        with pytest.raises(TimeoutError):
            await source.next_piece(asyncio.get_running_loop().time() + 0.01)
        comes.set()
        return await source.next_piece()

    assert asyncio.run(run()) == b"late"


def test_bodies_share_one_bound_and_give_it_back() -> None:
    whole = AdmittedBytes(50)
    assert code(intake(b"x" * 30, b"x" * 30), whole) == (503, "capacity_exhausted")
    with whole.share() as other:
        other.grow(40)
        assert code_beside(whole) == "busy"
    assert read(intake(b"x" * 50), whole) == b"x" * 50


def code_beside(whole: AdmittedBytes) -> str | None:
    async def run() -> None:
        with whole.share() as share:
            await read_body(intake(b"x" * 20), share, 100, 10_000)

    with pytest.raises(Problem) as refused:
        asyncio.run(run())
    assert refused.value.retry_after_s == 1
    return refused.value.reason


def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    source = intake(b"x", {"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        read(source, AdmittedBytes(100))
    assert source.complete


def test_lingering_takes_what_comes_and_ends_with_it() -> None:
    source = intake(b"x", b"y", b"z")
    asyncio.run(source.linger())
    assert source.complete
    asyncio.run(intake(b"x", {"type": "http.disconnect"}).linger())


def test_lingering_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gaoler.http.body.LINGER_S", 0.01)
    source = intake(b"x", ends=False)
    asyncio.run(source.linger())
    assert not source.complete


def test_lingering_ends_whatever_becomes_of_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gaoler.http.body.LINGER_S", 0.01)
    asyncio.run(stubborn().linger())


@pytest.mark.parametrize(("stranger", "most_bytes"), [(False, 2**20), (True, 2**16)])
def test_lingering_throws_away_only_so_much(
    monkeypatch: pytest.MonkeyPatch, stranger: bool, most_bytes: int
) -> None:
    for name in ("LINGER_S", "STRANGER_LINGER_S"):
        monkeypatch.setattr(f"gaoler.http.body.{name}", 0.2)
    source, sizes = endless(b"x" * 2**14)
    asyncio.run(source.linger(stranger=stranger))
    assert 0 < sum(sizes) <= most_bytes


def test_a_dropped_intake_leaves_no_task_behind() -> None:
    async def run() -> int:
        source = intake(b"x", ends=False)
        await source.next_piece()
        with pytest.raises(TimeoutError):
            await source.next_piece(asyncio.get_running_loop().time() + 0.01)
        source.drop()
        source.drop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1


def test_large_bodies_are_checked_one_at_a_time_off_the_loop() -> None:
    running = threading.Lock()
    threads = []

    def work() -> None:
        assert running.acquire(blocking=False)
        threads.append(threading.current_thread())
        running.release()

    async def run() -> None:
        checking = Checking()
        await asyncio.gather(*(checking.check(LARGE_BODY_BYTES, work) for _ in range(50)))
        assert threading.current_thread() not in threads
        await checking.check(LARGE_BODY_BYTES - 1, work)
        assert threads[-1] is threading.current_thread()

    asyncio.run(run())
    assert len(threads) == 51


def test_a_check_that_nobody_waits_for_any_more_keeps_its_turn_until_it_ends() -> None:
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        assert may_end.wait(20)
        order.append("slow")
        raise ValueError

    async def run() -> None:
        checking = Checking()
        first = asyncio.ensure_future(checking.check(LARGE_BODY_BYTES, slow))
        await asyncio.to_thread(begun.wait, 20)
        first.cancel()
        check = checking.check(LARGE_BODY_BYTES, lambda: order.append("next"))
        second = asyncio.ensure_future(check)
        for _ in range(10):  # turns of the loop, in which it could begin
            await asyncio.sleep(0)
        assert not first.done()
        may_end.set()
        await asyncio.wait({first, second})
        assert first.cancelled()

    asyncio.run(run())
    assert order == ["slow", "next"]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; charset=utf8; profile=x",
    ],
)
def test_json_is_taken(content_type: str) -> None:
    check_headers({"content-type": content_type, "content-length": "10"}, 10)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_anything_else_is_a_415(headers: dict[str, str]) -> None:
    with pytest.raises(Problem) as refused:
        check_headers(headers, 10)
    assert (refused.value.status, refused.value.code) == (415, "unsupported_media_type")


def test_a_declared_size_is_refused_before_anything_is_read() -> None:
    with pytest.raises(Problem) as refused:
        check_headers({"content-type": "application/json", "content-length": "11"}, 10)
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")
