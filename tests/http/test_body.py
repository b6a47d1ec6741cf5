"""Bodies: how large, how slow, and how many of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gaoler.http.body import AdmittedBytes, Intake, check_headers, read_body
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
