"""Fuzzed: a Content as a client may write it.

Input: JSON; what is no JSON is taken for the text of a base64.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gaoler.http import content
from gaoler.http.decode import decode
from gaoler.http.errors import Problem
from gaoler.http.paths import quoted

LONGEST_BYTES = 400
WORDS = (
    *(b'{"content":"', b'{"base64":"', b'{"file_id":"', b'"mode":"', b'"}', b'","', b"null", b"1"),
    *(b"=", b"==", b"===", b"AAAA", b"0" * 64, b"0755", b"755", b"0777", rb"\n", rb"\u0000"),
)
_SIGN = r"[A-Za-z0-9+/]"
_BASE64 = re.compile(rf"(?:{_SIGN}{{4}})*(?:{_SIGN}{{2}}==|{_SIGN}{{3}}=)?")


def fuzz(data: bytes) -> None:
    try:
        check(decode(data))
    except Problem:
        check({"base64": data.decode("latin-1")})


def check(value: object) -> None:
    """Each way to read a Content says what `expected` says."""
    check_one(value, lambda: (content.content(value, "x"), content.DEFAULT_MODE), with_mode=False)
    check_one(value, lambda: content.file_content(value, "x"), with_mode=True)


def check_one(
    value: object, read: Callable[[], tuple[content.Content, int]], *, with_mode: bool
) -> None:
    wanted = expected(value, with_mode=with_mode)
    try:
        got = read()
    except Problem as problem:
        check_refusal(problem, wanted)
        return
    assert got == wanted
    assert type(got[1]) is int
    assert 0 <= got[1] <= 0o777


def check_refusal(problem: Problem, wanted: object) -> None:
    """It is one line, short, and names a field that is at fault."""
    assert (problem.status, problem.code) == (400, "invalid_request")
    assert problem.detail.isprintable()
    assert len(problem.detail) < 1_200
    assert isinstance(wanted, set), f"{problem.detail} of {wanted}"
    assert problem.detail in wanted or problem.detail.partition(": ")[0] in wanted


def expected(value: object, *, with_mode: bool) -> tuple[content.Content, int] | set[str]:
    """What a Content means, told in another way; or the fields that a refusal may name."""
    if isinstance(value, str):
        return content.Inline(value.encode()), content.DEFAULT_MODE
    if not isinstance(value, dict):
        return {"x"}
    allowed = {"content", "base64", "file_id"} | ({"mode"} if with_mode else set())
    faults = {f"x: unknown field {quoted(name)}" for name in set(value) - allowed}
    given = set(value) & {"content", "base64", "file_id"}
    mode: Any = value.get("mode", "0644") if with_mode else "0644"
    if not isinstance(mode, str) or not re.fullmatch("[0-7]{3}|0[0-7]{3}", mode):
        faults.add("x.mode")
    if len(given) != 1:
        faults.add("x: exactly one of content, base64 and file_id is needed")
    if faults:
        # The first that is found is named.
        return faults | {f"x.{name}" for name in given}
    kind = given.pop()
    meant = _meant(kind, value[kind])
    return {f"x.{kind}"} if meant is None else (meant, int(mode, 8))


def _meant(kind: str, value: object) -> content.Content | None:
    if not isinstance(value, str):
        return None
    if kind == "content":
        return content.Inline(value.encode())
    if kind == "base64":
        data = decoded(value)
        return None if data is None else content.Inline(data)
    return content.Stored(value, "x.file_id") if re.fullmatch("[0-9a-f]{64}", value) else None


def decoded(text: str) -> bytes | None:
    """What padded base64 says, bit by bit; None where it is none."""
    if not _BASE64.fullmatch(text):
        return None
    signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    bits = "".join(f"{signs.index(sign):06b}" for sign in text.rstrip("="))
    whole = len(bits) // 8
    # Bits of the last sign that are nobody's are passed over, as RFC 4648 lets a reader do.
    return bytes(int(bits[8 * i : 8 * i + 8], 2) for i in range(whole))
