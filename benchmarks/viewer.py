"""Measure the viewer with many sessions: the time to write its page, open it in Chromium, filter and search.

    pip install playwright && apt-get install chromium
    python benchmarks/viewer.py --sessions 20000

The time of a filter or a search is the time from the input event until the browser has drawn the next frame.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from viewer_run import write_run

from verl_mas.results.sessions.view import ViewOptions, write_view

# Changes a field and returns the milliseconds until the browser has drawn the next frame.
TIMED = """([id, value]) => new Promise((resolve) => {
  const field = document.getElementById(id), start = performance.now();
  if (id.startsWith("toggle-")) document.querySelector(`[data-toggle="${id.slice(7)}"]`).click();
  else { field.value = value; field.dispatchEvent(new Event("input")); }
  const count = document.getElementById("count");
  requestAnimationFrame(() => setTimeout(() => resolve([performance.now() - start, count.textContent])));
})"""
CHANGES = [
    ("search", "postcards", "a word of an eighth of the sessions"),
    ("search", "e", "a letter of all of them"),
    ("search", "zzz", "a word of none"),
    ("search", '"many lamps does" wrong', "a phrase and a word"),
    ("search", "", "no search"),
    ("agent", "verifier", "an agent"),
    ("toggle-malformed", "", "and its malformed replies"),
    ("toggle-malformed", "", "without them"),
    ("partition", "train", "train only"),
    ("reward-from", "0.5", "a reward from 0.5"),
    ("step-from", "50", "steps from 50"),
    ("step-from", "", "all steps"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=20000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument(
        "--folder", type=Path, help="keeps the run and its page here; one that is there is measured again"
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    if not (folder / "trajectories").exists():
        write_run(folder, options.sessions)
    stored = sum(file.stat().st_size for file in (folder / "trajectories").rglob("*.jsonl*"))
    start = time.perf_counter()
    path, view = write_view(folder, ViewOptions(force=True))
    files = [path, *path.with_name("view_data").glob("*.js")]
    print(f"{view.count} sessions, {stored / 1e6:.0f} MB of records")
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"written in {time.perf_counter() - start:.1f} s: {len(files)} files, {size:.1f} MB")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        seconds = [opened(browser.new_page(), path) for _ in range(options.times)]
        print(f"opens in {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s, of {options.times} times")
        page = browser.new_page()
        opened(page, path)
        changed(page, options.times)
        scrolled(page)
        browser.close()


def opened(page: Page, path: Path) -> float:
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector(".transcript")
    return time.perf_counter() - start


def changed(page: Page, times: int) -> None:
    found: dict[str, list[float]] = {}
    counts = {}
    for _ in range(times):
        for name, value, label in CHANGES:
            milliseconds, counts[label] = page.evaluate(TIMED, [name, value])
            found.setdefault(label, []).append(milliseconds)
        page.click("#clear")
    for label, values in found.items():
        print(f"{label:38} {statistics.median(values):6.0f} ms, at most {max(values):4.0f} ms   {counts[label]}")


def scrolled(page: Page) -> None:
    """Print the time of the slowest frame while the page scrolls through the whole list."""
    slowest = page.evaluate("""() => new Promise((resolve) => {
      const list = document.getElementById("list"), step = list.scrollHeight / 120;
      let last = performance.now(), worst = 0, count = 0;
      const frame = () => {
        const now = performance.now();
        worst = Math.max(worst, now - last); last = now;
        list.scrollTop += step;
        if (++count < 120) requestAnimationFrame(frame); else resolve(worst);
      };
      requestAnimationFrame(frame);
    })""")
    print(f"{'scrolling through the list':38} {slowest:6.0f} ms for the slowest of 120 frames")


if __name__ == "__main__":
    main()
