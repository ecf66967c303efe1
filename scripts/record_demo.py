"""Record a verl-mas command in a terminal as an animated SVG: `python scripts/record_demo.py`, takes some minutes.

The output of the command and its times go to an asciinema file (`--cast`), and the SVG is drawn from this file. If the
file exists, a new recording is appended to it. So a picture can show a run that is ended with Ctrl-C
(`--interrupt-after`) and, in a second recording, resumes. `--draw` only draws the file again and runs no command.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 108, 30
SIZE, LINE, MARGIN, BAR = 12, 16, 14, 30  # Sizes of letters, lines and the window in pixels
LETTER = SIZE * 0.6
FRAMES, SHOWN_S, END_S = 14, 1.0, 8.0
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
OF_256 = {237: "#484f58", 197: "#ff5fa2", 70: "#7ee787"}  # Colours of rich's progress bars in the palette of 256
PLAIN = "#c9d1d9"
# Clocks and spinners. They change all the time, so a change of them alone is not a new picture.
TICKS = re.compile(r"\d+:\d\d:\d\d|-:--:--|[\u2800-\u28ff]")
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(\x1b.?)", re.DOTALL)
Cell = tuple[str, str, bool]  # A letter, its colour, and whether it is bold


@dataclass
class Screen:
    """A terminal that knows the escape sequences of rich: colours, and those with which rich rewrites lines."""

    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    colour: str = PLAIN
    bold: bool = False

    def write(self, text: str) -> None:
        for match in SEQUENCE.finditer(text):
            arguments, command, back, down, letters, _ = match.groups()
            if letters:
                self._letters(letters)
            elif back:
                self.column = 0
            elif down:
                self.row, self.column = self.row + 1, 0
                self.lines += [[]] if self.row == len(self.lines) else []
            elif command == "A":
                self.row = max(self.row - int(arguments or 1), 0)
            elif command == "K":
                self.lines[self.row] = []
            elif command == "m":
                self._style([int(code or 0) for code in arguments.split(";")])

    def _letters(self, text: str) -> None:
        for letter in text:
            if self.column == COLUMNS:
                self.write("\n")
            line = self.lines[self.row]
            line += [(" ", PLAIN, False)] * (self.column + 1 - len(line))
            line[self.column] = (letter, self.colour, self.bold)
            self.column += 1

    def _style(self, codes: Sequence[int]) -> None:
        if codes[:2] == [38, 5]:
            self.colour = OF_256.get(codes[2], PLAIN)
            return
        for code in codes:
            if code in (0, 39):
                self.colour = PLAIN
            self.bold = (self.bold or code == 1) and code not in (0, 22)
            self.colour = COLOURS.get(code, self.colour)

    def seen(self) -> list[list[Cell]]:
        """Return the lines that a window of this height shows."""
        return [list(line) for line in self.lines[-ROWS:]]


def record(command: Sequence[str], cast: Path, folder: Path, interrupt_after: float | None) -> int:
    """Run the command, append its output to the file `cast`, and return its exit code."""
    done = json.loads(cast.read_text().splitlines()[-1])[0] if cast.exists() else 0.0
    started = time.monotonic() - done
    process, terminal = start(command, folder)
    with cast.open("a") as file:
        if not done:
            file.write(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}) + "\n")
        file.write(json.dumps([done, "o", f"$ verl-mas {' '.join(command)}\r\n"]) + "\n")
        for text in written(terminal, process, interrupt_after):
            # Shorten paths to be relative to the folder, so that the recording does not depend on this machine.
            text = text.replace(f"{folder.resolve()}/", "")
            file.write(json.dumps([round(time.monotonic() - started, 2), "o", text]) + "\n")
    return process.wait()


def start(command: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start `verl-mas` in a new session on a new pseudo-terminal. Return the process and our end of the terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    words = [sys.executable, "-m", "verl_mas", *command]
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    return process, ours


def written(terminal: int, process: subprocess.Popen[bytes], interrupt_after: float | None) -> Iterator[str]:
    # Decode incrementally, because a letter of several bytes may arrive in two parts.
    begin, decode = time.monotonic(), codecs.getincrementaldecoder("utf-8")("replace").decode
    os.set_blocking(terminal, False)
    while True:
        if interrupt_after is not None and time.monotonic() - begin > interrupt_after:
            process.send_signal(signal.SIGINT)
            interrupt_after = None
            yield "^C"
        try:
            found = os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.1)
            continue
        except OSError:
            return  # On Linux, a read raises this error when the process has closed its terminal.
        yield decode(found)


def frames(cast: Path) -> list[tuple[float, list[list[Cell]]]]:
    """Return up to FRAMES distinct screens of the recording, each with its time in seconds. The first and the last
    screen are included."""
    screen, moments, before = Screen(), [], ""
    for line in cast.read_text().splitlines()[1:]:
        at, _, text = json.loads(line)
        screen.write(text)
        now = TICKS.sub("", "\n".join("".join(cell[0] for cell in line) for line in screen.seen()))
        moments = moments if now != before else moments[:-1]
        moments.append((at, screen.seen()))
        before = now
    chosen = {round((len(moments) - 1) * number / (FRAMES - 1)) for number in range(FRAMES)}
    return [moments[index] for index in sorted(chosen)]


def draw(chosen: Sequence[tuple[float, list[list[Cell]]]], title: str) -> str:
    width, height = round(COLUMNS * LETTER + 2 * MARGIN), BAR + ROWS * LINE + MARGIN
    whole = SHOWN_S * (len(chosen) - 1) + END_S
    style = [f"text{{font:{SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}"]
    parts = []
    for number, (at, lines) in enumerate(chosen):
        first, last = number * SHOWN_S / whole * 100, (number + 1) * SHOWN_S / whole * 100
        end = "" if number == len(chosen) - 1 else f"{last:.2f}%,to{{opacity:0}}"
        style.append(f"@keyframes f{number}{{0%{{opacity:0}}{first:.2f}%{{opacity:1}}{end}}}")
        style.append(f"#f{number}{{animation:f{number} {whole:g}s step-end infinite}}")
        shown = "" if number == len(chosen) - 1 else ' opacity="0"'
        clock = f'<text x="{width - MARGIN}" y="20" text-anchor="end" fill="#8b949e">{at / 60:.1f} min</text>'
        parts.append(f'<g id="f{number}"{shown}>{clock}{"".join(texts(lines))}</g>')
    # If the reader's system asks for reduced motion, the SVG shows only the last picture.
    style.append("@media(prefers-reduced-motion:reduce){g{animation:none!important}}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    window = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    name = f'<text x="{MARGIN}" y="20" fill="#8b949e">{escape(title)}</text>'
    return "\n".join([head, f"<style>{''.join(style)}</style>", window, name, *parts, "</svg>\n"])


def texts(lines: Sequence[Sequence[Cell]]) -> Iterator[str]:
    for number, line in enumerate(lines):
        column, y = 0, BAR + (number + 1) * LINE
        for (colour, bold), cells in groupby(line, key=lambda cell: cell[1:]):
            text = "".join(cell[0] for cell in cells)
            x, begin = column + len(text) - len(text.lstrip()), text.strip()
            column += len(text)
            if begin:
                weight = ' font-weight="bold"' if bold else ""
                place = f'x="{MARGIN + x * LETTER:.0f}" y="{y}" textLength="{len(begin) * LETTER:.0f}"'
                yield f'<text {place} fill="{colour}"{weight}>{escape(begin, quote=False)}</text>'


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/start/images/demo.svg")
    parser.add_argument("--cast", type=Path, default=ROOT / "build/demo.cast")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where the command is run")
    parser.add_argument("--interrupt-after", type=float, metavar="SECONDS")
    parser.add_argument("--draw", action="store_true", help="draw what is recorded already")
    options, command = parser.parse_known_args(argv)
    command, code = command or ["demo"], 0
    if not options.draw:
        options.folder.mkdir(parents=True, exist_ok=True)
        options.cast.parent.mkdir(parents=True, exist_ok=True)
        code = record(command, options.cast, options.folder, options.interrupt_after)
    chosen = frames(options.cast)
    options.out.write_text(draw(chosen, f"verl-mas {' '.join(command)}"))
    sys.stdout.write(f"{options.out}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
