"""`python -m tests.alterations.survey [LAYER…]`: which probes hold without which layer.

Runs the adversarial suite once for each layer, against a sandbox without it, and prints what
fell.  A probe that falls is one that this layer alone had stopped; all others were stopped by
what remained.  Heavy probes are left out.  bin/layers is the command.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.alterations.layers_off import LAYERS

ROOT = Path(__file__).parent.parent.parent
PROBES = ("tests/adversarial", "tests/sandbox/test_isolation.py")
DOCUMENT = ROOT / "docs" / "security.md"
RECORD = Path(__file__).with_name("survey.json")
BEGIN = "<!-- made by bin/layers --write -->\n"
END = "<!-- end -->\n"
_MOST_NAMED = 8
_SIDE_BY_SIDE = 2
LIMIT_S = 900


@dataclass(frozen=True)
class Survey:
    """One layer's run: how many probes there were, and the names of those that fell."""

    layer: str
    tried: int
    fell: tuple[str, ...]


def survey(layer: str) -> Survey:
    """Run every probe that is not heavy without the layer.  Raises where that says nothing."""
    with TemporaryDirectory(prefix="gaoler-layers-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not heavy", f"--without={layer}", f"--junitxml={report}", *PROBES]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(f"{layer}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _read(layer, report)


def _read(layer: str, report: Path) -> Survey:
    tried, fell = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        tried.add(_name(case))
        if case.find("failure") is not None or case.find("error") is not None:
            fell.add(_name(case))
    return Survey(layer, len(tried), tuple(sorted(fell)))


def _name(case: ElementTree.Element) -> str:
    """`file.py::function`, without parameters, below the checkout."""
    module = case.get("classname", "").replace(".", "/")
    return f"{module}.py::{case.get('name', '').partition('[')[0]}"


def survey_all(layers: list[str]) -> list[Survey]:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return list(pool.map(survey, layers))


# --- the record ---------------------------------------------------------------------------


def record(surveys: list[Survey]) -> None:
    """Write what was seen, for the suite to hold on to, and the table of docs/security.md."""
    rows = [dataclasses.asdict(each) for each in surveys]
    RECORD.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    DOCUMENT.write_text(head + BEGIN + table(surveys) + END + tail, encoding="utf-8")


def recorded() -> list[Survey]:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    return [Survey(row["layer"], row["tried"], tuple(row["fell"])) for row in rows]


def table(surveys: list[Survey]) -> str:
    """Markdown: for each layer, how many probes were still stopped and what held no longer."""
    lines = [
        "| without | probes that still hold | promises that no longer do |",
        "| --- | --- | --- |",
    ]
    for each in surveys:
        held = f"{each.tried - len(each.fell)} of {each.tried}"
        lines.append(f"| {each.layer} | {held} | {_sentences(each.fell)} |")
    return "\n".join(lines) + "\n"


def _sentences(fell: tuple[str, ...]) -> str:
    """Tests are named by what holds."""
    said = [name.rpartition("::test_")[2].replace("_", " ") for name in fell]
    more = f"; and {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
    return "; ".join(said[:_MOST_NAMED]) + more


def main(arguments: list[str]) -> int:
    wanted = [a for a in arguments if a != "--write"]
    unknown = [a for a in wanted if a not in LAYERS]
    if unknown or ("--write" in arguments and wanted):
        print("layers: allowed are --write, or some of these:", *LAYERS, sep="\n", file=sys.stderr)
        return 2
    surveys = survey_all(wanted or list(LAYERS))
    print(table(surveys), end="")
    if "--write" in arguments:
        record(surveys)
    unseen = [each.layer for each in surveys if not each.fell]
    if unseen:
        print(f"no probe misses: {', '.join(unseen)}", file=sys.stderr)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
