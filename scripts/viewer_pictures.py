"""Take pictures of the page of `verl-mas view`: `python scripts/viewer_pictures.py RUN`, with Playwright and Chromium.

RUN is the folder of a run with session records. Run the script again after a change of the page; never edit the
pictures by hand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from verl_mas.results.sessions.view import ViewOptions, write_view

ROOT = Path(__file__).parents[1]
SIZE = {"width": 1200, "height": 900}


def photographed(page: Page, out: Path, keys: Sequence[str]) -> None:
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(200)
    page.screenshot(path=out)
    # The page has few colours, so a palette of 96 colours is enough and makes the file a third as large.
    Image.open(out).quantize(96, dither=Image.Dither.NONE).save(out, optimize=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/use/images")
    parser.add_argument(
        "--name", default="viewer", help="the pictures are NAME-story.png, NAME-session.png and NAME-group.png"
    )
    parser.add_argument("--session", default="", help="the page's address of a session, what follows its #")
    options = parser.parse_args(argv)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder) / options.run.resolve().name
        shutil.copytree(options.run, run)
        page_file = write_view(run, ViewOptions(force=True))[0]
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture, theme, keys in (("story", "light", ""), ("session", "light", "s"), ("group", "dark", "sg")):
            page = browser.new_page(viewport=SIZE, color_scheme=theme, device_scale_factor=1)
            page.goto(f"{page_file.as_uri()}#{options.session and 'story/'}{options.session}")
            page.wait_for_selector(".transcript")
            photographed(page, options.out / f"{options.name}-{picture}.png", keys)
        browser.close()
    sys.stdout.write(f"{options.out}/{options.name}-session.png\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
