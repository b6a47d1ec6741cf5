"""Keys: found in either header, never kept, never half right."""

from __future__ import annotations

import gc
import hmac

import pytest

from gaoler.http.auth import Keys
from gaoler.http.errors import Problem

KEYS = ("first-key-0123456789", "second-key-987654321", "dritter-schlüssel-01")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-api-key", b"second-key-987654321"),
        (b"x-api-key", b" second-key-987654321 "),
        (b"authorization", b"Bearer second-key-987654321"),
        (b"authorization", b"bearer   second-key-987654321"),
    ],
)
def test_a_key_is_found_in_either_header(name: bytes, value: bytes) -> None:
    keys = Keys(KEYS)
    assert keys.identify([(b"host", b"x"), (name, value)]) == keys.identify(
        [(b"x-api-key", KEYS[1].encode())]
    )


def test_a_key_outside_ascii_is_found_as_utf8() -> None:
    assert Keys(KEYS).identify([(b"x-api-key", KEYS[2].encode())])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"first-key-012345678")],
        [(b"x-api-key", b"first-key-01234567890")],
        [(b"x-api-key", b"Bearer first-key-0123456789")],
        [(b"authorization", b"first-key-0123456789")],
        [(b"authorization", b"Basic first-key-0123456789")],
        [(b"authorization", b"Bearer")],
        [(b"x-api-key", b"\xff\xfe")],
        [(b"cookie", b"first-key-0123456789")],
    ],
)
def test_anything_else_is_a_401_that_says_how(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Problem) as refused:
        Keys(KEYS).identify(headers)
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    assert "WWW-Authenticate" in refused.value.headers


def test_without_keys_everybody_is_the_same_client() -> None:
    assert Keys(()).identify([(b"x-api-key", b"whatever")]) == ""


def test_different_keys_have_different_short_ids_that_hold_nothing_of_the_key() -> None:
    keys = Keys(KEYS)
    ids = {keys.identify([(b"x-api-key", key.encode())]) for key in KEYS}
    assert len(ids) == 3
    assert all(len(each) == 12 and each not in "".join(KEYS) for each in ids)


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    keys = Keys(KEYS)
    monkeypatch.setattr("gaoler.http.auth.hmac.compare_digest", counting)
    keys.identify([(b"x-api-key", KEYS[0].encode())])
    assert len(compared) == 3


def test_the_keys_themselves_are_not_kept() -> None:
    keys = Keys(KEYS)
    kept = gc.get_referents(keys.__dict__)
    assert not any(key in repr(kept) for key in KEYS)
