"""A class with endless loops and a grading pass, for real, beside what the planner predicts.

Twelve students of one evaluation run programs that never end and click again whenever the
service is done with them or says that it is busy; a script grades twenty copies, one request
after another.  The service has its own defaults and two slots.  The same people are in
planning/scenarios/class-of-endless-loops.toml, which is simulated afterwards.

    bin/bench classroom [SECONDS]     300 where no number is given; the copies take longer
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaoler.http.client import Answer, Client, Limits, Request, RunnerBusy, Task
from tests.hosting import LiveService

SCENARIO = Path("planning/scenarios/class-of-endless-loops.toml")
STUDENTS, CASES, COPIES = 12, 15, 20
CLICK_AGAIN_S = 1.0
LOOP = Task("/usr/bin/python3", ["-c", "while True: pass"], limits=Limits(wall_ms=2_000))
COPY = Task("/bin/sleep", ["0.1"], limits=Limits(wall_ms=2_000))


@dataclass
class Seen:
    """What the requests of one class met; the lock is for the threads that note it."""

    sent: int = 0
    refused_at_once: int = 0
    refused_later: int = 0
    queued_ms: list[int] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)  # of each, from the beginning
    answered_s: list[float] = field(default_factory=list)  # how long each answer took
    told: list[int] = field(default_factory=list)  # cases with a result, of each answer
    ran_ms: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Classroom:
    def __init__(self, url: str, seconds: float) -> None:
        self.url = url
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.interactive, self.grading = Seen(), Seen()

    def run(self) -> None:
        with ThreadPoolExecutor(STUDENTS + 1) as pool:
            people = [pool.submit(self.student, random.Random(n)) for n in range(STUDENTS)]
            people.append(pool.submit(self.grade))
            for person in people:
                person.result()

    def student(self, chance: random.Random) -> None:
        """Clicks until the lesson is over; a click that is under way then still counts."""
        time.sleep(chance.random())
        with Client(self.url) as client:
            while time.monotonic() < self.end:
                self.click(client, Request([LOOP] * CASES, evaluation_id="quiz"), self.interactive)
                time.sleep(CLICK_AGAIN_S)

    def grade(self) -> None:
        """Every copy is graded, however often the service is busy."""
        with Client(self.url) as client:
            for _ in range(COPIES):
                while not self.click(client, Request([COPY], priority="grading"), self.grading):
                    time.sleep(CLICK_AGAIN_S)

    def click(self, client: Client, request: Request, seen: Seen) -> bool:
        """False: the service was busy."""
        clicked = time.monotonic()
        try:
            answer = client.execute(request)
        except RunnerBusy:
            waited_s = time.monotonic() - clicked
            with seen.lock:
                seen.sent += 1
                seen.answered_s.append(waited_s)
                seen.refused_at_once += waited_s < 5
                seen.refused_later += waited_s >= 5
            return False
        self.note(seen, clicked, answer)
        return True

    def note(self, seen: Seen, clicked: float, answer: Answer) -> None:
        with seen.lock:
            seen.sent += 1
            seen.answered_s.append(time.monotonic() - clicked)
            seen.queued_ms.append(answer.timing.queued_ms)
            seen.started_s.append(clicked - self.began + answer.timing.queued_ms / 1_000)
            seen.told.append(sum(result.outcome == "timed_out" for result in answer.each))
            seen.ran_ms.append(answer.timing.setup_ms + answer.timing.run_ms)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gaoler-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        service = LiveService(folder, MAX_CONCURRENCY="2").start()
        try:
            classroom = Classroom(f"http://127.0.0.1:{service.port}", seconds)
            classroom.run()
            held = service.request("GET", "/internal/queue", internal=True).body
        finally:
            service.stop()
    _print(classroom, _predicted(seconds))
    print(f"afterwards: {held['slots']['free']} of 2 slots are free, caps in use: {held['caps']}")
    return 0


def _predicted(seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "gaoler.cli.main", "plan", "--scenario", str(SCENARIO)]
    options = ["--duration-ms", str(int(seconds * 1_000)), "--json"]
    found = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    classes: dict[str, Any] = json.loads(found.stdout)["classes"]
    return classes


def _print(classroom: Classroom, predicted: dict[str, Any]) -> None:
    lesson_s = classroom.end - classroom.began
    print(f"{'':<36}{'interactive':>24}{'grading':>24}")
    print(f"{'':<36}{'real':>12}{'predicted':>12}{'real':>12}{'predicted':>12}")
    real = {
        name: _row(seen, lesson_s)
        for name, seen in (("interactive", classroom.interactive), ("grading", classroom.grading))
    }
    for row in real["interactive"]:
        cells = ""
        for name in ("interactive", "grading"):
            cells += f"{real[name][row]:>12}{_told(predicted[name], row):>12}"
        print(f"{row:<36}{cells}")
    seen = classroom.interactive
    print(f"longest that anybody waited for any answer: {max(seen.answered_s):.1f} s")
    print(f"of a loop: ran {_range(seen.ran_ms)} ms, cases told {_range(seen.told)} of {CASES}")
    grading = classroom.grading
    print(
        f"copies graded: {len(grading.told)} of {COPIES}; longest {max(grading.answered_s):.1f} s"
    )
    starts = ", ".join(f"{second:.0f}" for second in grading.started_s)
    print(f"grading requests started at (s): {starts}")


def _row(seen: Seen, lesson_s: float) -> dict[str, str]:
    """Those that started within the lesson, which is what is simulated."""
    queued = sorted(
        queued
        for queued, started in zip(seen.queued_ms, seen.started_s, strict=True)
        if started < lesson_s
    )
    return {
        "requests started": str(len(queued)),
        "refused at once": str(seen.refused_at_once),
        "refused after the allowance": str(seen.refused_later),
        "in the queue, median": _seconds(queued[len(queued) // 2] if queued else None),
        "in the queue, worst": _seconds(queued[-1] if queued else None),
    }


def _told(predicted: dict[str, Any], row: str) -> str:
    return {
        "requests started": str(predicted["started"]),
        "refused at once": str(predicted["refused_at_once"]),
        "refused after the allowance": str(predicted["refused_after_the_allowance"]),
        "in the queue, median": _seconds(predicted["queued"]["median_ms"]),
        "in the queue, worst": _seconds(predicted["queued"]["worst_ms"]),
    }[row]


def _seconds(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1_000:.1f} s"


def _range(values: list[int]) -> str:
    return f"{min(values)} to {max(values)}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
