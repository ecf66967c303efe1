"""The tutorial, walked from an empty folder: its files are written and its commands run, in the order of the page."""

import json
import os
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_blocks import ROOT, Block, commands, fenced
from ray_start import free_port

PAGE = ROOT / "docs/start/tutorial.md"
# Settings that take long, and their shorter replacements.
SHORTER = {"steps=400": "steps=20", "total_training_steps: 20": "total_training_steps: 2"}
SHORTER |= {"test_freq: 5": "test_freq: 2", "save_freq: 10": "save_freq: 2"}
SERVES_WITHIN_S = 120


class Walk:
    """A reader of the page, in a folder."""

    def __init__(self, folder: Path, python: str):
        self.folder, self.port = folder, free_port()
        self.programs = {"python": [python], "verl-mas": [python, "-m", "verl_mas"]}
        self.outputs: dict[str, str] = {}

    def write(self, block: Block) -> None:
        assert block.file is not None
        text = block.text
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        (self.folder / block.file).write_text(text)

    def run(self, words: list[str]) -> None:
        if words[0] == "cd":
            self.folder /= words[1]
        elif words[0] == "curl":
            self.ask(words[1], words[words.index("-d") + 1])
        else:
            done = subprocess.run(self.command(words), **self.where, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{shlex.join(words)}:\n{(done.stdout + done.stderr)[-6000:]}"
            self.outputs[shlex.join(words[:2])] = done.stdout

    def command(self, words: list[str]) -> list[str]:
        return [*self.programs[words[0]], *(self.port if word == "8000" else word for word in words[1:])]

    @property
    def where(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": os.environ | {"PYTHONPATH": str(ROOT)}}

    def ask(self, url: str, data: str) -> None:
        """Send the request of `curl`, again and again until the server answers."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url.replace("8000", self.port), data.encode(), headers)
        deadline = time.monotonic() + SERVES_WITHIN_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.outputs["curl"] = json.load(answer)["choices"][0]["message"]["content"]
                    return
            except urllib.error.HTTPError as error:
                raise AssertionError(error.read().decode()) from error
            except OSError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.5)

    @contextmanager
    def serving(self, words: list[str]) -> Iterator[None]:
        with (self.folder / "serve.log").open("w") as log:
            process = subprocess.Popen(self.command(words), **self.where, stdout=log, stderr=subprocess.STDOUT)
            try:
                yield
            finally:
                process.terminate()
                process.wait(timeout=30)


def test_the_shorter_walk_changes_what_the_page_has():
    for long in SHORTER:
        assert PAGE.read_text().count(long) == 1, long


@pytest.mark.e2e
@pytest.mark.nightly
def test_the_page_leads_from_an_empty_folder_to_a_served_team(tmp_path, warm_python):
    walk, blocks = Walk(tmp_path, warm_python), fenced(PAGE)
    before = iter(blocks)
    for block in before:
        if block.file:
            walk.write(block)
        elif block.language == "bash":
            for words in commands(block):
                if words[:2] == ["verl-mas", "serve"]:
                    with walk.serving(words):
                        [[*request]] = commands(next(before))
                        walk.run(request)
                else:
                    walk.run(words)
    team = walk.folder / "treasure_team"
    assert {"README.md", "team.yaml", "main"} <= {path.name for path in team.iterdir()}
    assert (walk.folder / "runs/first/view.html").is_file()
    assert len(walk.outputs["curl"]) <= 4, "a reply of 4 tokens, each of them a byte"
    asked = walk.outputs["python ask.py"]
    assert asked.startswith("a7: the scout writes ") and "\nh2: the scout writes " in asked
    shown = next(block.text for block in blocks if block.language == "text")
    for line in set(shown.splitlines()) - {"..."}:
        assert line in walk.outputs["verl-mas try"].splitlines()
    assert re.search(r"^accepted", walk.outputs["verl-mas check"].splitlines()[-1])
