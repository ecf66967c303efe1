"""Writes the data of a page again while its run trains. The page asks for `live.js` and loads what is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from verl_mas.run_folder.disk import write_whole
from verl_mas.sessions.view.page import LIVE, View, data_folder, script_of, version

SECONDS = 2.0


def follow(out: Path, view: View, wait: Callable[[], None] = lambda: time.sleep(SECONDS)) -> None:
    """Until Ctrl-C: `wait` raises KeyboardInterrupt."""
    try:
        while True:
            wait()
            refresh(out, view)
    except KeyboardInterrupt:
        return


def refresh(out: Path, view: View) -> bool:
    """Whether there was something new. Chunks come before the index that names them, and the version is last."""
    folder, before = data_folder(out), set(view.payloads)
    view.read()
    head = view.head()
    newest = script_of(LIVE, version(head))
    if (folder / f"{LIVE}.js").read_text(encoding="ascii") == newest:
        return False
    for name, payload in {**view.payloads, **head}.items():
        file = folder / f"{name}.js"
        if name in head or not file.exists():
            write_whole(file, script_of(name, payload))
    write_whole(folder / f"{LIVE}.js", newest)
    for file in folder.glob("*.js"):
        # An open page may still show what the last index named.
        if file.stem not in {LIVE, *head, *view.payloads, *before}:
            file.unlink()
    return True
