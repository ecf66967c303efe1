"""Notes on sessions, in a file in the folder of the run, and a local server that saves notes written in the page."""

import json
import logging
import secrets
import socket
import time
from functools import cache
from pathlib import Path
from threading import Thread

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from verl_mas.errors import DiskError
from verl_mas.results.sessions.run import RunFolder
from verl_mas.run_folder.disk import append_line, writing
from verl_mas.util.bodies import TooLong, whole
from verl_mas.util.http_server import Server

FILE = "notes.jsonl"
MOST = 50_000  # maximum size of a note in bytes
HOSTS = ["127.0.0.1", "localhost"]
logger = logging.getLogger(__name__)


def read_notes(run: RunFolder) -> dict[str, str]:
    """Map the name of each session, as in the address of a page, to the text of the last note on the session.

    An empty note deletes the earlier notes on its session.
    """
    file, notes = run.folder / FILE, {}
    lines = file.read_bytes().splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            note = json.loads(line)
            notes[str(note["session"])] = str(note["text"])
        except (ValueError, KeyError, TypeError):
            _skip(file, number)
    return {name: text for name, text in notes.items() if text}


@cache
def _skip(file: Path, number: int) -> None:
    """Warn about a line once, because a page that follows its run reads the notes again and again."""
    logger.warning("%s, line %d is damaged and is skipped: it is no note", file, number)


def write_note(run: RunFolder, session: str, text: str) -> None:
    file = run.folder / FILE
    fix = "make the folder of the run writable, or view a copy of it"
    with writing(file, "notes on sessions are kept beside their run", fix):
        append_line(file, json.dumps({"session": session, "text": text, "time": round(time.time(), 3)}))


class NoteServer:
    """Serves one page with its data, and saves its notes. Pages of other sites cannot write notes, because they lack
    the key and have another origin."""

    def __init__(self, page: Path, data: Path, runs: dict[str, RunFolder]):
        """`runs`: mark -> run. The marks of two runs are A and B, and the mark of a single run is empty. In the page,
        the names of a run's sessions begin with its mark."""
        self.page, self.runs, self.key = page, runs, secrets.token_urlsafe(16)
        inside = [
            Route(f"/{page.name}", self._page),
            Route("/note", self._note, methods=["POST"]),
            Mount(f"/{data.name}", StaticFiles(directory=data)),
        ]
        # Prevent DNS rebinding: a foreign host name may resolve to this machine.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
        self.app = Starlette(routes=[Mount(f"/{self.key}", routes=inside)], middleware=[hosts])

    def start(self, listens: socket.socket) -> str:
        """Serve until the process ends; return the path of the page."""
        Thread(target=Server(self.app).run, kwargs={"sockets": [listens]}, daemon=True).start()
        return f"{self.key}/{self.page.name}"

    async def _page(self, request: Request) -> Response:
        return FileResponse(self.page)

    async def _note(self, request: Request) -> Response:
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return JSONResponse({"error": "only the page of this server writes notes"}, 403)
        try:
            note = json.loads(await whole(request.stream(), MOST))
            session, text = (note[name].strip() for name in ("session", "text"))
            mark, _, name = session.partition("/") if "A" in self.runs else ("", "", session)
            write_note(self.runs[mark], name, text)
        except DiskError as error:
            return JSONResponse({"error": f"The note is not kept: {error}"}, 507)
        except (TooLong, ValueError, KeyError, TypeError, AttributeError):
            rule = f"a note is JSON of at most {MOST:,} bytes, with the name of a session and a text"
            return JSONResponse({"error": rule}, 400)
        return JSONResponse({})
