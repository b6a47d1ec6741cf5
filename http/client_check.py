"""Whether a client's values have the types that their fields name.  Pure.

Python does not look, and the JSON of a wrong one would come back as a refusal at best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

_LIKE_BYTES = (bytes, bytearray, memoryview)
_WORDS: dict[object, str] = {
    NoneType: "None",
    int: "an integer",
    bool: "a bool",
    str: "a string",
    bytes: "bytes",
    Sequence: "a list",
    Mapping: "a dict",
}


def need_types(struct: msgspec.Struct, path: str = "") -> None:
    """TypeError, which names the field as the API does, where a value is of another type."""
    for name, hint in _hints(type(struct)):
        _need(getattr(struct, name), hint, f"{path}.{name}" if path else name)


@cache
def _hints(struct: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(struct))


def _need(value: object, hint: Any, path: str) -> None:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    part = next((part for part in parts if _is_one(value, _kind(part))), None)
    if part is None:
        allowed = " or ".join(_word(_kind(part)) for part in parts)
        shown = value if isinstance(value, str | int | float) else type(value).__name__
        raise TypeError(f"{path}: expected {allowed}, not {shown!r:.80}")
    if isinstance(value, msgspec.Struct):
        need_types(value, path)
    elif get_origin(part) is Sequence and isinstance(value, Sequence):
        for index, each in enumerate(value):
            _need(each, get_args(part)[0], f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _need(key, get_args(part)[0], path)
            _need(each, get_args(part)[1], f"{path}.{key}")


def _kind(hint: Any) -> Any:
    """The class that a value of this hint has, whatever is in it."""
    # A word that is none of those allowed is for the service to refuse: a newer one has more.
    return str if get_origin(hint) is Literal else get_origin(hint) or hint


def _is_one(value: object, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is bytes:
        return isinstance(value, _LIKE_BYTES)
    if kind is Sequence:  # a string is one of strings as well, and never meant
        return isinstance(value, Sequence) and not isinstance(value, (str, *_LIKE_BYTES))
    return isinstance(value, kind)


def _word(kind: Any) -> str:
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")
