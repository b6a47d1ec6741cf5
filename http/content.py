"""Content: the bytes of a stdin or of a file, as a client may write them (docs/api.md)."""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec

from gaoler.http.errors import invalid
from gaoler.http.paths import quoted

DEFAULT_MODE = 0o644

_KINDS = ("content", "base64", "file_id")
_FILE_ID = re.compile(r"[0-9a-f]{64}")
_MODE = re.compile(r"0?[0-7]{3}")


class Inline(msgspec.Struct, frozen=True):
    """Bytes that came with the request."""

    data: bytes


class Stored(msgspec.Struct, frozen=True):
    """Bytes that the file store has."""

    file_id: str  # SHA-256, lower-case hex
    path: str  # the JSON path of the field, for the refusal


Content = Inline | Stored


def content(value: object, path: str) -> Content:
    """A Content at the JSON path `path`.  Raises Problem 400."""
    if isinstance(value, str):
        return Inline(value.encode())
    return _of_object(_as_object(value, path), path, _KINDS)


def file_content(value: object, path: str) -> tuple[Content, int]:
    """A Content of `files`, which may carry a mode, and that mode.  Raises Problem 400."""
    if isinstance(value, str):
        return Inline(value.encode()), DEFAULT_MODE
    given = _as_object(value, path)
    mode = _mode(given["mode"], f"{path}.mode") if "mode" in given else DEFAULT_MODE
    return _of_object(given, path, (*_KINDS, "mode")), mode


def _as_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(path, "expected a string or an object")
    return value


def _of_object(given: dict[str, Any], path: str, allowed: tuple[str, ...]) -> Content:
    for name in given:
        if name not in allowed:
            raise invalid(path, f"unknown field {quoted(name)}")
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise invalid(path, "exactly one of content, base64 and file_id is needed")
    where = f"{path}.{kinds[0]}"
    value = given[kinds[0]]
    if not isinstance(value, str):
        raise invalid(where, "expected a string")
    if kinds[0] == "content":
        return Inline(value.encode())
    return Inline(_decoded(value, where)) if kinds[0] == "base64" else _stored(value, where)


def _decoded(value: str, where: str) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        raise invalid(where, "not valid base64")
    if len(value) % 4 or value.endswith("==="):  # Python takes more padding than there can be
        raise invalid(where, "not valid base64: wrong padding")
    return data


def _stored(value: str, where: str) -> Stored:
    if _FILE_ID.fullmatch(value) is None:
        raise invalid(where, "a file id is a SHA-256 in lower-case hex")
    return Stored(value, where)


def _mode(value: object, where: str) -> int:
    if not isinstance(value, str) or _MODE.fullmatch(value) is None:
        raise invalid(where, 'a mode is a string of octal digits from "0000" to "0777"')
    return int(value, 8)
