"""What a Java source's file must be called, and which of its classes to start.

javac wants a public class in a file of its name.  This reads as much of the language as
that takes: comments and literals are left out, then the words outside all braces are
looked at.  A source that it misreads fails to compile, nothing worse.  Sources come from
strangers, so every pass takes time in proportion to their length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WITHOUT_CLASS = "Main"
TYPE_WORDS = ("class", "interface", "enum", "record")

# Each alternative matches even where its end is missing: a search that failed only at the
# end of the source would be begun again at the next quote.
_NOT_CODE = re.compile(
    r"/\*.*?(?:\*/|\Z)"
    r"|//[^\n]*"
    r'|"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'(?:\\.|[^'\\\n])*'?",
    re.DOTALL,
)
_TOKEN = re.compile(r"[^\W\d][\w$]*|\S")
_PACKAGE = re.compile(r"\s*package\s+([\w.$]+)\s*;")


@dataclass(slots=True)
class _Type:
    """A type outside all braces."""

    name: str
    public: bool
    has_main: bool = False


def file_name(source: str) -> str:
    """The public type's name with `.java`, else `Main.java`."""
    public = [found.name for found in _types(_code(source)) if found.public]
    return f"{public[0] if public else WITHOUT_CLASS}.java"


def main_class(source: str) -> str:
    """The class to start, with its package: the first with a main method, else the first."""
    code = _code(source)
    types = list(_types(code))
    starting = [found.name for found in types if found.has_main]
    name = (starting or [found.name for found in types] or [WITHOUT_CLASS])[0]
    package = _PACKAGE.match(code)
    return f"{package[1]}.{name}" if package else name


def _code(source: str) -> str:
    """The source without comments and literals, which may hold braces and key words."""
    return _NOT_CODE.sub(" ", source)


def _types(code: str) -> Iterator[_Type]:
    """The types outside all braces, in the order of the source."""
    depth, public = 0, False
    found: _Type | None = None
    before = previous = ""
    for token in _TOKEN.findall(code):
        if depth == 0 and previous in TYPE_WORDS and token.isidentifier() and before != ".":
            if found:
                yield found
            found = _Type(token, public)
        elif depth == 1 and found and (before, previous, token) == ("void", "main", "("):
            found.has_main = True
        depth = max(0, depth + (token == "{") - (token == "}"))
        # `public` holds for one declaration.
        public = depth == 0 and (token == "public" or (public and token not in "};"))
        before, previous = previous, token
    if found:
        yield found
