"""Run public programs through the gateway with scripted replies, and compare the rows with the programs' requests.

    PYTHONPATH=tests/support python scripts/public_programs/play.py [--sources FOLDER] [--work runs/programs] [NAME ...]

programs.yaml lists the programs; none is part of this repository. They are fetched at the commits in that file, or
taken from `--sources`, a folder with a git repository at each OWNER/NAME. Each program runs one session whose agents
are policies of verl's client with a scripted engine. A program passes if

- it ends without a fault, after the expected numbers of acts and rows of each agent;
- every token that was sampled is trained on exactly once;
- the tokens of each prompt equal the chat template's rendering of the request's body, which
  tests/support/reference_rows.py reads independently of the gateway.

The script prints one line per program, and its exit code is 1 if a program fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from reference_rows import Message, shown, transcript, with_instructions
from scripted_engine import scripted_policy

import verl_mas
from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.gateway.server import GatewayServer
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.session import Session
from verl_mas.workflow.task import Task
from verl_mas.workflows.program import ReferredProgram

Json = dict[str, Any]
HERE = Path(__file__).parent
SETTINGS: Json = yaml.safe_load((HERE / "programs.yaml").read_text())
LENGTHS = {"prompt_length": 200_000, "response_length": 200_000}
TIMEOUT_S = 300
# A template like Qwen's, in which the tools' schemas come first, before the messages.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = byte_tokenizer(max_length=1 << 20)
TOKENIZER.chat_template = TEMPLATE
# The text that the gateway adds before the schema of a typed reply.
SCHEMA = re.compile(r"(\n\n)?Reply with one JSON value of this schema, and nothing else:\n")


@dataclass(frozen=True, kw_only=True)
class Program:
    """An entry of programs.yaml.

    `blocks` are indices of code blocks on a page. These blocks, and then `then`, are written to the file that is run.
    `start` is the text of a file that runs the program.
    """

    name: str
    source: str
    environment: str
    files: Sequence[str]
    run: Sequence[str] = ("start.py",)
    start: str = ""
    blocks: Sequence[int] = ()
    then: str = ""
    edits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    question: str = "2 + 3 = ?"
    replies: Mapping[str, Sequence[str | Json]]
    rows: Mapping[str, str]

    def prepare(self, repository: Path, folder: Path) -> None:
        """Write the program's files, with its edits, into a new folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        archive = ["git", "-C", repository, "archive", SETTINGS["sources"][self.source], "--", *self.files]
        files = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=files, check=True)
        if self.blocks:
            code = [*code_blocks(folder / self.files[0], self.blocks), self.then]
            (folder / self.run[-1]).write_text("\n".join(code))
        for file, changes in self.edits.items():
            text = (folder / file).read_text()
            for old, new in changes.items():
                if old not in text:
                    raise ValueError(f"{file} has no {old!r}")
                text = text.replace(old, new)
            (folder / file).write_text(text)
        if self.start:
            (folder / self.run[0]).write_text(self.start)

    async def play(self, runs: str) -> tuple[Session, list[Exchange]]:
        """Run a session of the program in the current folder. Return the session and the program's requests."""
        # The paths are absolute, because programs with the same paths in their commands would share a fork server.
        command = [runs, *(os.path.abspath(word) if os.path.isfile(word) else word for word in self.run)]
        clients = {name: scripted_policy(TOKENIZER, Script(each), **LENGTHS)[0] for name, each in self.replies.items()}
        program = ReferredProgram(
            agents=tuple(self.replies), command=command, models={**self.models}, pass_env=[*self.variables]
        )
        specs = {name: AgentSpec(policy=name) for name in self.replies}
        task = Task([{"role": "user", "content": self.question}], ground_truth="5")
        with recorded() as exchanges, patch.dict(os.environ, self.variables):
            played = verl_mas.arun(program, task, clients, agents=specs, faults=FaultSpec(retries=0))
            return await asyncio.wait_for(played, TIMEOUT_S), exchanges


class Script:
    """The replies of an agent, in order. The last reply repeats.

    In `{"of": PATTERN, "text": ...}`, the last match of the pattern in the prompt is filled into the text.
    """

    def __init__(self, replies: Sequence[str | Json]):
        self._replies = replies

    def __call__(self, prompt: str, number: int) -> str:
        given = self._replies[min(number, len(self._replies) - 1)]
        reply = given if isinstance(given, dict) else {"text": given}
        text: str = reply.get("text", "")
        if "of" in reply:
            text = text.format(re.findall(reply["of"], prompt)[-1])
        called = [(name, given) for call in reply.get("calls", ()) for name, given in call.items()]
        return text + "".join(f"<tool_call>\n{_json(name=n, arguments=a)}\n</tool_call>" for n, a in called)


def _json(**fields: object) -> str:
    # Sort the keys of the arguments, as the reference does.
    return json.dumps({**fields, "arguments": json.loads(json.dumps(fields["arguments"], sort_keys=True))})


@dataclass(frozen=True)
class Exchange:
    path: str
    body: Json
    reply: Json


@contextlib.contextmanager
def recorded() -> Iterator[list[Exchange]]:
    """Record the HTTP requests that programs send to the gateway inside the `with` block, and the replies."""
    exchanges: list[Exchange] = []
    inner = GatewayServer.__call__

    async def call(server: GatewayServer, scope: Any, receive: Any, send: Any) -> None:
        sent, got, statuses = bytearray(), bytearray(), list[int]()

        async def receiving() -> Any:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])
            got.extend(message.get("body", b""))
            await send(message)

        await inner(server, scope, receiving, sending)
        path = scope["path"].rstrip("/")
        if statuses == [200] and path.endswith(("/chat/completions", "/responses", "/messages")):
            exchanges.append(Exchange(path, json.loads(sent), _whole(got.decode())))

    with patch.object(GatewayServer, "__call__", call):
        yield exchanges


def _whole(reply: str) -> Json:
    """Return the body of a reply. For a stream, return the response in its last event, or {} if that has none."""
    if not reply.startswith(("event:", "data:")):
        whole: Json = json.loads(reply)
        return whole
    events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
    ended: Json = events[-1].get("response", {})
    return ended


def prompts(exchanges: Sequence[Exchange]) -> Iterator[str]:
    """Yield the prompt of each request, as the chat template renders it."""
    served = {item["id"]: item for each in exchanges for item in each.reply.get("output", ())}
    inputs: dict[str | None, list[Any]] = {None: []}
    for each in exchanges:
        body = each.body
        if each.path.endswith("/responses"):
            given = body["input"]
            items = [{"role": "user", "content": given}] if isinstance(given, str) else given
            items = [served[item["id"]] if item.get("type") == "item_reference" else item for item in items]
            body = body | {"input": [*inputs[body.get("previous_response_id")], *items]}
            inputs[each.reply["id"]] = [*body["input"], *each.reply["output"]]
        messages = map(_chat, with_instructions([*transcript(each.path, body)], body))
        yield _rendered([*messages], [_schema(tool) for tool in shown(body)])


def _rendered(messages: Sequence[Json], tools: Sequence[Json]) -> str:
    text = TOKENIZER.apply_chat_template([*messages], tools=[*tools], add_generation_prompt=True, tokenize=False)
    return str(text)


def _chat(message: Message) -> Json:
    calls = [{"function": {"name": name, "arguments": json.loads(given)}} for name, given in message.calls]
    return {"role": message.role, "content": message.content, "tool_calls": calls}


def _schema(tool: Json) -> Json:
    """Return a tool of any dialect in the format of the chat completions API."""
    if "function" in tool:
        return tool
    described = {"description": tool["description"]} if tool.get("description") is not None else {}
    parameters = tool.get("parameters") or tool.get("input_schema") or {}
    return {"type": "function", "function": {"name": tool["name"], **described, "parameters": parameters}}


def trained(reply: Reply) -> str:
    """Return the text of an act's prompt, decoded from the tokens of the act's row."""
    made = reply.generation
    return SCHEMA.sub("", TOKENIZER.decode([*made.prompt_ids, *made.response_ids][: -made.sampled]))


def problems(program: Program, session: Session, exchanges: Sequence[Exchange]) -> Iterator[str]:
    rows, replies = session.rows(), session.replies
    if Counter(map(id, replies)) != Counter(id(reply) for row in rows for reply in row.replies):
        yield "its rows do not have each act once"
    for row in rows:
        made = row.generation
        sampled = [token for token, own in zip(made.response_ids, made.response_mask, strict=True) if own]
        each = (reply.generation.response_ids[-reply.generation.sampled :] for reply in row.replies)
        if sampled != [*chain.from_iterable(each)]:
            yield "a row does not train on each sampled token once"
    sent, seen = Counter(prompts(exchanges)), Counter(map(trained, replies))
    if sent != seen:
        only_sent, only_seen = [*(sent - seen), ""], [*(seen - sent), ""]
        pairs = enumerate(zip(only_sent[0], only_seen[0], strict=False))
        same = next((place for place, (old, new) in pairs if old != new), 0)
        ends = (f"...{text[max(0, same - 80) : same + 200]!r}..." for text in (only_sent[0], only_seen[0]))
        yield f"{max(len(only_sent), len(only_seen)) - 1} wrong prompts: sent {next(ends)}, trained {next(ends)}"
    counts = {
        name: f"{sum(r.agent == name for r in replies)} -> {sum(row.first.agent == name for row in rows)}"
        for name in program.replies
    }
    if counts != program.rows:
        yield f"acts -> rows: {counts}, and not {program.rows}"


def code_blocks(page: Path, numbers: Sequence[int]) -> Iterator[str]:
    """Yield the code of a notebook's cells, or of a page's blocks, at these indices."""
    if page.suffix == ".ipynb":
        blocks = ["".join(cell["source"]) for cell in json.loads(page.read_text())["cells"]]
    else:
        blocks = re.findall(r"^```(?:python|ts)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    yield from (blocks[number] for number in numbers)


def repository(source: str, sources: Path | None, work: Path) -> Path:
    """Return a git repository that has the commit of a source."""
    if sources is not None:
        return sources / source
    folder = work / "sources" / source
    if not folder.exists():
        url, commit = f"https://github.com/{source}", SETTINGS["sources"][source]
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        subprocess.run(["git", "-C", folder, "fetch", "--quiet", "--depth", "1", url, commit], check=True)
    return folder


def interpreter(name: str, work: Path) -> str:
    """Return the Python of an environment, which is created if it does not exist."""
    about, folder = SETTINGS["environments"][name], work / "environments" / name
    if "npm" in about:
        if not folder.exists():
            subprocess.run(["npm", "install", "--silent", "--prefix", folder, *about["npm"]], check=True)
        # Node looks for `node_modules` in a program's folder and in the folders above it.
        (work / "programs" / "node_modules").unlink(missing_ok=True)
        (work / "programs" / "node_modules").symlink_to(folder / "node_modules")
        return shutil.which("node") or "node"
    if not folder.exists():
        subprocess.run([about.get("python", sys.executable), "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *about["pip"]], check=True)
    return str(folder / "bin" / "python")


def outcome(program: Program, sources: Path | None, work: Path) -> str:
    """Run a program and return why it fails; an empty string if it passes."""
    folder = work / "programs" / program.name
    try:
        program.prepare(repository(program.source, sources, work), folder)
        runs = interpreter(program.environment, work)
        with contextlib.chdir(folder):
            session, exchanges = asyncio.run(program.play(runs))
    except Exception:  # noqa: BLE001  boundary: the other programs are played
        return traceback.format_exc(limit=-3)
    return "\n".join(problems(program, session, exchanges))


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--sources", type=Path, help="repositories as OWNER/NAME, which are not fetched")
    command.add_argument("--work", type=Path, default=Path("runs/programs"), help="of clones, environments and copies")
    command.add_argument("names", nargs="*", metavar="NAME", help="programs; all by default")
    options = command.parse_args()
    sources, work = options.sources and options.sources.resolve(), options.work.resolve()
    failed = 0
    for name in options.names or SETTINGS["programs"]:
        program = Program(name=name, **SETTINGS["programs"][name])
        why = outcome(program, sources, work)
        failed += bool(why)
        counts = ", ".join(f"{agent} {count}" for agent, count in program.rows.items())
        sys.stdout.write(f"{name}: {why or counts}\n")
        sys.stdout.flush()
    sys.exit(f"{failed} programs failed" if failed else 0)


if __name__ == "__main__":
    main()
