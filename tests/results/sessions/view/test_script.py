"""The functions of the page's script that need no page, in Node.js."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from view_runs import act, session

from verl_mas.results.sessions.view.index import Page, StepPart, groups_of, index_of, search_of
from verl_mas.results.sessions.view.page import HERE, SCRIPTS, as_json, packed

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node.js (`node` on the path), not used by the package")
CASES = yaml.safe_load((Path(__file__).parent / "script.yaml").read_text(encoding="utf-8"))
PAGELESS = ("data.js", "filter.js", "text.js")
SESSIONS = [
    session(1, "1-0", 0, 0.0),
    session(1, "1-0", 1, 1.0, acts=[act("solver", "lamps and bricks", policy="big"), act("checker", malformed="none")]),
    session(1, "1-1", 0, None, status="dropped", acts=[act("solver", malformed="cut")]),
    session(
        1, "1-1", 1, -2.0, faults=[{"kind": "timeout", "cause": "Slow\u2028Full\nstop", "agent": None, "turn": None}]
    ),
    session(2, "2-0", 0, 1.0, uniform=True, acts=[act("solver", "Lamps only", sampled_tokens=900)]),
    session(2, "2-0", 1, 1.0, uniform=True, acts=[act("solver", "bricks, then lamps")]),
]


def answer(program: str) -> object:
    """Run a program that can use `run` and `search`, the data of SESSIONS, and return its `answer`."""
    pages = []
    for step in (1, 2):
        records = [record for record in SESSIONS if record["step"] == step]
        pages.append(Page(StepPart("train", step, ()), groups_of(records), ((f"chunk{step}", len(records)),)))
    about = {"runs": [""]}
    lines = [
        *((HERE / name).read_text() for name in PAGELESS),
        f"const index = '{packed(as_json(index_of(pages, about)))}', texts = '{packed(search_of(pages)[0])}';",
        "(async () => { let answer; const run = openIndex(JSON.parse(await unpack(index)));",
        "const search = (await unpack(texts)).split('\\n', run.count);",
        CASES["before"],
        program,
        "console.log(JSON.stringify(answer)); })();",
    ]
    return json.loads(node("-", program="\n".join(lines)))


def node(*arguments: str, program: str) -> str:
    done = subprocess.run([NODE, *arguments], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_in_the_page_and_its_syntax_is_right():
    assert sorted(SCRIPTS) == sorted(path.name for path in HERE.glob("*.js"))
    node("--check", "-", program="\n".join((HERE / name).read_text() for name in SCRIPTS))


@pytest.mark.parametrize("what", CASES["programs"])
def test_a_function_of_the_script_answers(what):
    assert answer(CASES["programs"][what]["program"]) == CASES["programs"][what]["answer"]


def test_a_control_is_named_after_its_set_and_comes_after_the_sets():
    values = {f"val-core/{name}mean@4": [0.5] for name in ("clues_shuffled/", "clues/", "mean_of_sets/")}
    ask = f"featuredPanels({{ values: {json.dumps(values)} }}, [])[0].series.map((one) => one.label)"
    labels = node("-", program=f"{(HERE / 'curves.js').read_text()}\nconsole.log(JSON.stringify({ask}))")
    assert json.loads(labels) == ["clues", "mean_of_sets", "control of clues"]
