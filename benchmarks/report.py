"""A report of a million records: time to build over reading them, size, and time to open."""

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orderone.core.record import Record, read_records
from orderone.core.run import RunFolder
from orderone.report.runs import report
from orderone.report.vega import library

NAMES = ("loss", "norm", "relative_step", "alignment", "gradient_norm_before_clipping")
GROUPS = 10
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")

OPENED = "performance.timing.loadEventEnd - performance.timing.navigationStart"
ANSWERS = """
() => new Promise((resolve) => {
  const look = () => {
    if (document.querySelector("figure[data-live]")) resolve(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})
"""


def write_run(path: Path, count: int) -> RunFolder:
    """A watched run: every name by ten groups, at as many steps as make ``count`` records."""
    run = RunFolder.create(path, command="watch", config={"every": 1}, seed=0)
    with run.writer() as records:
        for step in range(count // (len(NAMES) * GROUPS)):
            for offset, name in enumerate(NAMES):
                for group in range(GROUPS):
                    value = offset + 1 + group / 10 + math.sin(step / 500 + group)
                    labels = {"by": "layer", "group": f"encoder.{group}"}
                    records.write(Record(step, name, value, labels))
    run.finish("done", {"steps": step + 1})
    return run


def seconds(call: Callable[[], object]) -> float:
    """CPU time: others on the machine do not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


def opening_milliseconds(page: Path) -> tuple[float, float] | None:
    """Until the page is shown, and until its first chart answers to the pointer, in Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        times: list[list[float]] = []
        for _ in range(5):
            shown = browser.new_page()
            shown.goto(page.as_uri())
            answers = shown.evaluate(ANSWERS)
            times.append([shown.evaluate(OPENED), answers])
            shown.close()
        browser.close()
    opened, answered = zip(*times, strict=True)
    return statistics.median(opened), statistics.median(answered)


def compare(folder: Path, count: int, rounds: int) -> dict[str, object]:
    run = write_run(folder / "run", count)
    library()  # once a process, whatever the records
    build, read = [], []
    html = ""
    for _ in range(rounds):
        read.append(seconds(lambda: read_records(run.records_path)))

        def built() -> None:
            nonlocal html
            html = report([run.path]).html()

        build.append(seconds(built))
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    megabytes = page.stat().st_size / 1e6
    opening = opening_milliseconds(page)
    print(f"read     {min(read):6.2f} s of CPU time")
    print(f"report   {min(build):6.2f} s of CPU time, reading included")
    print(f"page     {megabytes:6.2f} MB")
    shown, answers = (None, None) if opening is None else opening
    if opening is None:
        print("opening  no chromium here")
    else:
        print(f"opening  {shown:6.0f} ms; its first chart answers after {answers:.0f} ms")
    return {
        "bench": "report",
        "records": count,
        "read_s": min(read),
        "build_s": min(build),
        "page_mb": megabytes,
        "opening_ms": shown,
        "answers_ms": answers,
        "ratio": min(build) / min(read),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        print(json.dumps(compare(folder, chosen.records, chosen.rounds)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
