"""The HTML file of a view and its folder of data. Wrong arguments are refused before anything is written.

Sessions are stored in chunks, which the page loads on demand. Data is compressed with gzip and encoded in base64, so no
text of a model becomes HTML or JavaScript.
"""

import base64
import gzip
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from verl_mas.errors import ConfigError, DataError
from verl_mas.results.sessions.run import RunFolder, open_run
from verl_mas.results.sessions.view import index
from verl_mas.results.sessions.view.index import Page, StepPart, index_of, searched_of
from verl_mas.results.sessions.view.notes import NoteServer, read_notes
from verl_mas.run_folder.disk import replaced, write_whole, writing
from verl_mas.run_folder.records import Record
from verl_mas.run_folder.session_files import FOLDER
from verl_mas.util.text import encodable

HERE = Path(__file__).parent
# The browser gets these files as one script, in this order.
SCRIPTS = ("data.js", "filter.js", "text.js", "curves.js", "list.js", "transcript.js", "app.js")
STYLE, TEMPLATE = "page.css", "page.html.j2"
# A chunk larger than CHUNK_CHARS ends after the current group; a chunk larger than GROUP_CHARS ends after the current
# session.
CHUNK_CHARS, GROUP_CHARS = 400_000, 3_000_000
IMAGE_BYTES = 2_000_000
LEVEL = 4  # compression level of gzip; higher levels take twice the time and save only a tenth of the size
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
# Maximum bytes of compressed sessions in a page. If there are more, all data goes to a folder next to the page.
INLINE = 12_000_000
LIVE = "live"  # name of the data file that has the version of the data; the page of a running run polls this file
SECONDS = 2.0
# The start of every data file, and an element of every page. `verl-mas view` recognises its own files by them.
ARRIVES, MARK = b"verlMasView.arrive(", b'<meta name="generator" content="verl-mas view">'
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ViewOptions:
    out: Path | None = None  # the HTML file; by default `view.html` in the folder of the run
    force: bool = False  # whether to replace a file that `verl-mas view` did not write
    steps: tuple[int, int] | None = None  # first and last step of the page; None: all steps
    limit: int | None = None  # maximum number of sessions; the newest are read
    inline: int = INLINE  # see INLINE
    notes: bool = False  # whether the page sends notes to its server


@dataclass
class Chunk:
    """Sessions of one step as JSON. Each message is stored once, and sessions refer to its index."""

    messages: dict[str, int] = field(default_factory=dict)  # message -> its index
    sessions: list[str] = field(default_factory=list)
    chars: int = 0

    def add(self, record: Record, images: Path) -> None:
        task = {**record["task"], "messages": self._all(record["task"]["messages"], images)}
        acts = [
            {**act, "messages": self._all(act["messages"], images), "steps": self._all(act.get("steps") or [], images)}
            for act in record["acts"]
        ]
        self.sessions.append(as_json({**record, "task": task, "acts": acts}))
        self.chars += len(self.sessions[-1])

    def _all(self, messages: Sequence[Record], images: Path) -> list[int]:
        places = []
        for message in messages:
            content = message.get("content")
            parts = {"content": [_part(part, images) for part in content]} if isinstance(content, list) else {}
            text = as_json({**message, **parts})
            self.chars += 0 if text in self.messages else len(text)
            places.append(self.messages.setdefault(text, len(self.messages)))
        return places

    def text(self) -> str:
        return f'{{"messages":[{",".join(self.messages)}],"sessions":[{",".join(self.sessions)}]}}'


def chunks(part: StepPart, sessions: Sequence[Record], images: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the chunks of a step: name, number of sessions, text. The name has a checksum of the text."""
    chunk, number = Chunk(), 0
    for place, record in enumerate(sessions):
        chunk.add(record, images)
        last = place + 1 == len(sessions)
        ends_group = last or sessions[place + 1]["uid"] != record["uid"]
        if last or (chunk.chars > CHUNK_CHARS and ends_group) or chunk.chars > GROUP_CHARS:
            text = chunk.text()
            mark = zlib.crc32(encodable(text).encode())
            yield f"{part.run.lower()}{part.partition}-{part.step:06d}-{number}-{mark:08x}", len(chunk.sessions), text
            chunk, number = Chunk(), number + 1


def _part(part: Record, images: Path) -> Record:
    """Add the bytes of an image if it belongs to the run and is small enough. Otherwise the page shows its name."""
    name = part.get("file")
    if not isinstance(name, str):
        return part
    file = (images / name).resolve()
    kind = KINDS.get(file.suffix.lower())
    inside = file.is_relative_to(images.resolve())
    if kind is None or not inside or not file.is_file() or file.stat().st_size > IMAGE_BYTES:
        return part
    return {**part, "data": f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"}


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(encodable(text).encode(), LEVEL, mtime=0)).decode("ascii")


def as_json(value: object) -> str:
    """Convert a value to JSON. NaN and infinities become strings, because a browser refuses JSON that has them."""
    dumped = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    try:
        return dumped(value)
    except ValueError:
        return dumped(json.loads(json.dumps(value, default=str), parse_constant=str))


@dataclass
class RunView:
    """Content of the page of one or two runs. A second `read` reads only the steps that changed."""

    runs: Sequence[RunFolder]
    options: ViewOptions
    live: bool = False
    report: Mapping[str, Sequence[str]] = field(default_factory=dict)  # sections of a report: title -> lines
    payloads: dict[str, str] = field(default_factory=dict)
    _pages: dict[tuple[StepPart, float], Page] = field(default_factory=dict)  # by part and maximum number of sessions

    def __post_init__(self) -> None:
        marks = "AB" if len(self.runs) > 1 else [""]
        self.sources = {mark: index.SessionSource(run, mark) for mark, run in zip(marks, self.runs, strict=True)}

    def read(self, progress: Progress | None = None) -> None:
        pages, before, left = {}, self._pages, self.options.limit or inf
        # Start with the newest parts, so that a limit skips the oldest ones.
        parts = [part for source in self.sources.values() for part in source.parts(self.options.steps)]
        wanted = sorted(parts, key=lambda part: (part.step, part.partition, part.run))[::-1]
        count = 0
        for number, part in enumerate(wanted):
            if left == 0:
                break
            page = before.get((part, left)) or before.get((part, inf))
            if page is None or len(page.entries) > left:
                page = self._page(part, left, searched_of(count))
            pages[part, left if len(page.entries) == left else inf] = page
            count += len(page.entries)
            left -= len(page.entries)
            if progress:
                progress(number + 1, len(wanted))
        self._pages = dict(reversed(pages.items()))
        named = {name for page in self._pages.values() for name, _ in page.chunks}
        self.payloads = {name: payload for name, payload in self.payloads.items() if name in named}

    def read_story(self) -> None:
        """Read only the sessions of the story with which the page opens: one session for each run and step of the
        story."""
        self.read()
        chosen = [found for step in index.story_of(self.pages) for found in step]
        self.payloads = {}
        self._pages = {(part, 1): self._page(part, inf, index.SEARCHED_OF_ONE, group.uid) for part, group in chosen}

    def _page(self, part: StepPart, limit: float, searched: int, uid: str | None = None) -> Page:
        source = self.sources[part.run]
        images = source.run.trajectories
        assert images is not None
        records = [record for record in source.sessions(part) if uid in (None, record["uid"])]
        records = records[:1] if uid else records[-int(min(limit, len(records))) :]
        sizes = []
        for name, size, text in chunks(part, records, images):
            sizes.append((name, size))
            self.payloads[name] = packed(text)
        return Page(part, index.groups_of(records, searched), tuple(sizes))

    @property
    def title(self) -> str:
        return ", ".join(f"{mark} {run.name}".strip() for mark, run in zip(self.sources, self.runs, strict=True))

    @property
    def pages(self) -> list[Page]:
        return list(self._pages.values())

    @property
    def count(self) -> int:
        return sum(len(page.entries) for page in self.pages)

    def head(self) -> dict[str, str]:
        """Return the payloads that the page needs to open."""
        text, cut = index.search_of(self.pages)
        about = {
            "runs": [*self.sources],
            "folder": " and ".join(str(run.folder) for run in self.runs),
            "live": self.live,
            "report": self.report,
            "notes": {
                f"{mark}/{name}".strip("/"): text
                for mark, source in self.sources.items()
                for name, text in read_notes(source.run).items()
            },
            "cut": cut,
            "curves": index.curves_of({mark: source.run.steps() for mark, source in self.sources.items()}, self.pages),
        }
        # Agents are in the order of the configuration, so their colours do not depend on which agent acts first.
        agents = [name for run in self.runs for name in run.agents]
        return {"index": packed(as_json(index_of(self.pages, about, agents))), "search": packed(text)}


def report_page(runs: Sequence[RunFolder], report: Mapping[str, Sequence[str]]) -> str:
    """Render a page in a single file: the sections of a report, the curves, and one task at up to four steps."""
    view = RunView(runs, ViewOptions(), report=report)
    view.read_story()
    return render(view.title, {**view.head(), **view.payloads}, "")


def write_view(
    runs: str | Path | Sequence[str | Path],
    options: ViewOptions | None = None,
    live: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, RunView]:
    """Write the page of one or two runs. If it raises DataError, ConfigError or DiskError, it has changed nothing."""
    options = options or ViewOptions()
    opened = [open_run(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    out = options.out or opened[0].folder / ("view.html" if len(opened) == 1 else "compare.html")
    _check_place(out, options.force)
    view = RunView(opened, options, live)
    view.read(progress)
    if not live:
        _check_sessions(view)
    head, size = view.head(), sum(map(len, view.payloads.values()))
    apart, payloads, data = live or size > options.inline, {**head, **view.payloads}, data_folder(out)
    fix = f"choose another place, as with --out {out.name}, or make room"
    with writing(out, "the page and its folder of data are written as a whole", fix):
        out.parent.mkdir(parents=True, exist_ok=True)
        _replace_folder(data, {**payloads, LIVE: version(head)} if apart else {})
        write_whole(out, render(view.title, {} if apart else payloads, data.name if apart else "", options.notes))
    return out, view


def _check_sessions(view: RunView) -> None:
    steps = view.options.steps
    for mark, source in view.sources.items():
        if any(page.groups and page.part.run == mark for page in view.pages):
            continue
        rule = "a run writes them to trajectories/ in its folder, or to mas.trajectories.dir, where they are enabled"
        fix = f"{source.run.when_empty}, or train with mas.trajectories.enabled=true"
        folder = source.run.folder
        inside = [str(child) for child in folder.iterdir() if (child / FOLDER).is_dir()]
        fix = f"give {inside[0]}, which has them" if inside else fix
        value, known = f"{folder} has no sessions", sorted({part.step for part in source.parts()})
        if known and steps:
            value = f"--steps {steps[0]}-{steps[1]} has no sessions"
            rule = f"the run recorded sessions of steps {known[0]} to {known[-1]}"
            fix = f"use --steps {known[0]}-{known[-1]}"
        raise DataError(value, rule=rule, fix=fix)
    if not index.story_of(view.pages):
        value = f"{' and '.join(str(run.folder) for run in view.runs)} have no task in common at the same step"
        rule = "a page of two runs shows what both wrote for the same task"
        raise DataError(value, rule=rule, fix="view runs with the same data.val_files and trainer.test_freq, or one")


def follow(out: Path, view: RunView) -> None:
    """Refresh the page until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(SECONDS)
            refresh(out, view)


def refresh(out: Path, view: RunView) -> bool:
    """Write new data; return whether there was new data. Chunks are written before the index that names them, and the
    version is written last."""
    folder, before = data_folder(out), set(view.payloads)
    if not (folder / f"{LIVE}.js").exists():
        rule, fix = "one `verl-mas view` writes a page", "give each its own --out"
        raise DataError(f"{out} was replaced or removed, and is no longer live", rule=rule, fix=fix)
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
        # Keep the chunks of the previous index, because an open page may still load them.
        if file.stem not in {LIVE, *head, *view.payloads, *before}:
            file.unlink()
    return True


def note_server(out: Path, view: RunView) -> NoteServer:
    return NoteServer(out, data_folder(out), {mark: source.run for mark, source in view.sources.items()})


def data_folder(out: Path) -> Path:
    return out.with_name(f"{out.stem}_data")


def version(head: dict[str, str]) -> str:
    """Return a hash of the content of a page."""
    return hashlib.sha256("".join(head.values()).encode()).hexdigest()[:16]


def script_of(name: str, payload: str) -> str:
    """Wrap data in a script, because a page opened from disk may load only scripts."""
    return f'{ARRIVES.decode()}"{name}","{payload}");\n'


def _check_place(out: Path, force: bool) -> None:
    if out.suffix != ".html" or out.is_dir():
        raise ConfigError(f"--out {out}", rule="it is an HTML file", fix=f"use --out {out.with_suffix('')}.html")
    data = data_folder(out)
    if out.exists() and not force and MARK not in out.read_bytes():
        rule, fix = "only a page of `verl-mas view` is replaced", "choose another --out, or add --force to replace it"
        raise ConfigError(f"--out {out}: {out} exists, and is no such page", rule=rule, fix=fix)
    foreign = [path.name for path in sorted(data.iterdir()) if not _is_ours(path)] if data.is_dir() else []
    if foreign:
        rule = "the data of an earlier page are replaced, and nothing else"
        fix = "choose another name with --out"
        raise ConfigError(f"--out {out}: {data} has {', '.join(foreign[:3])}", rule=rule, fix=fix)


def _is_ours(path: Path) -> bool:
    """Return whether `verl-mas view` wrote a file. Files that a killed --live left incomplete count, too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return ARRIVES.startswith(file.read(len(ARRIVES)))


def _replace_folder(folder: Path, files: dict[str, str]) -> None:
    """Replace a folder by exactly these files once all are written. Without files, remove the folder."""
    with replaced(folder) as building:
        for name, payload in files.items():
            (building / f"{name}.js").write_text(script_of(name, payload), encoding="ascii")
    if not files:
        folder.rmdir()


def render(title: str, payloads: dict[str, str], folder: str, notes: bool = False) -> str:
    """Render the page with its data, or with the name of the folder of its data. `notes`: whether the page sends notes
    to its server."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    script = "".join(f"{(HERE / name).read_text(encoding='utf-8')}\n" for name in SCRIPTS)
    style = (HERE / STYLE).read_text(encoding="utf-8")
    # A page with a folder also loads the scripts in that folder. `'self'` allows these scripts if a server sends the
    # page, and `file:` allows them if the page is opened from disk.
    others = " file: 'self'" if folder else ""
    sources = f"default-src 'none'; script-src '{_digest(script)}'{others}; style-src '{_digest(style)}'"
    connects = "connect-src 'self'; " if notes else ""
    policy = f"{sources}; {connects}img-src data:; base-uri 'none'; form-action 'none'"
    values = {"title": title, "policy": policy, "script": script, "style": style, "notes": notes}
    return environment.get_template(TEMPLATE).render(**values, payloads=payloads, folder=folder)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
