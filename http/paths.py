"""Workspace-relative paths: what may be asked for, and the one spelling that is passed on.

The rule is the sandbox's own.  A path that is refused here never reaches it; what is left it
resolves below /box without following links.
"""

from __future__ import annotations

import json
from itertools import pairwise
from operator import itemgetter

from gaoler.http.errors import invalid
from gaoler.sandbox import paths as sandbox_paths

_SHOWN_CHARACTERS = 80


def quoted(text: str) -> str:
    """A client's own text for use in a `detail`: one line, escaped, not too long."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return json.dumps(cut, ensure_ascii=True)


def folder(path: str, where: str) -> str:
    """The normal form of a path that names a folder; "." is the workspace itself.

    `where` is the JSON path of the field.  Raises Problem 400.
    """
    fault = sandbox_paths.fault(path)
    if fault is not None:
        raise invalid(where, f"the path {fault}")
    return sandbox_paths.normalise(path)


def file(path: str, where: str) -> str:
    """The normal form of a path that names a file.  Raises Problem 400."""
    normal = folder(path, where)
    if normal == "." or path.endswith(("/", "/.")):
        raise invalid(where, "the path names a folder, not a file")
    return normal


def check_collisions(paths: dict[str, str]) -> None:
    """Raise Problem 400 where two of the paths cannot both be files.

    `paths` maps each JSON path to the normal form of what stands there.
    """
    # With "/" as the least of all characters, what is below a file comes right behind it:
    # "a", "a/b", "a-b".  No path has a NUL.
    keys = ((normal.replace("/", "\0"), where) for where, normal in paths.items())
    ordered = sorted(keys, key=itemgetter(0))
    for (one, one_where), (next_one, next_where) in pairwise(ordered):
        if next_one == one:
            raise invalid(next_where, f"the same file as {one_where}")
        if next_one.startswith(one + "\0"):
            raise invalid(next_where, f"runs through the file {one_where}")
