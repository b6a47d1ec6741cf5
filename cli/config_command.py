"""`gaoler config`: every setting with value, default, source and meaning.

With names it prints their values alone, one a line, for scripts.  API keys are counted,
never shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping

from gaoler.cli import exit_codes
from gaoler.config.settings import Reading, read, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="print the values of these settings alone, one a line",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    unknown = [name for name in args.names if name.upper() not in table()]
    if unknown:
        print(f"gaoler config: no setting is called {unknown[0]!a}", file=sys.stderr)
        return exit_codes.BAD_USAGE
    rows = describe(read(environ))
    wanted = [name.upper() for name in args.names]
    if wanted:
        by_name = {str(row["name"]): row for row in rows}
        rows = [by_name[name] for name in wanted]
    print(_as_json(rows) if args.json else _as_values(rows) if wanted else _as_text(rows))
    return exit_codes.DONE


def describe(reading: Reading) -> list[dict[str, object]]:
    """One object for each setting: name, value, default, source, allowed, meaning."""
    return [
        {
            "name": name,
            "value": row.kind.plain(getattr(reading.settings, name.lower())),
            "default": row.kind.plain(row.default()),
            "source": reading.sources[name],
            "allowed": row.kind.allowed,
            "meaning": row.meaning,
        }
        for name, row in table().items()
    ]


def _as_json(rows: list[dict[str, object]]) -> str:
    return json.dumps({"settings": rows}, indent=2)


def _as_values(rows: list[dict[str, object]]) -> str:
    return "\n".join(_text(row["value"], nothing="") for row in rows)


def _as_text(rows: list[dict[str, object]]) -> str:
    """Columns; the value and its default are written as the environment would have them."""
    columns = ("name", "value", "default", "source", "meaning")
    lines = [tuple(column.upper() for column in columns)]
    lines += [tuple(_text(row[column]) for column in columns) for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns) - 1)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        )
        for line in lines
    )


def _text(value: object, nothing: str = "-") -> str:
    if value is None:
        return nothing
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
