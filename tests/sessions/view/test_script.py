"""The functions of the page's script that need no page, in Node.js."""

# ruff: noqa: E501, RUF001  # programs in JavaScript, and the signs that the page writes

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from view_runs import act, session

from verl_mas.sessions.view.index import Page, StepPart, groups_of, index_of, search_of
from verl_mas.sessions.view.page import HERE, SCRIPTS, as_json, packed

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="needs Node.js (`node` on the path), which the package does not use"
)
PAGELESS = ("data.js", "filter.js", "text.js")
SESSIONS = [
    session(1, "1-0", 0, 0.0),
    session(1, "1-0", 1, 1.0, acts=[act("solver", "lamps and bricks", policy="big"), act("checker", malformed="none")]),
    session(1, "1-1", 0, None, status="dropped", acts=[act("solver", malformed="cut")]),
    session(1, "1-1", 1, -2.0, faults=[{"kind": "timeout", "cause": "Slow", "agent": None, "turn": None}]),
    session(2, "2-0", 0, 1.0, uniform=True, acts=[act("solver", "Lamps only", sampled_tokens=900)]),
    session(2, "2-0", 1, 1.0, uniform=True, acts=[act("solver", "bricks, then lamps")]),
]


def answer(program: str) -> object:
    """What `answer` is after the program, which has `run` and `search` of the sessions above."""
    pages = [
        Page(StepPart("train", step, ()), groups_of([r for r in SESSIONS if r["step"] == step]), ()) for step in (1, 2)
    ]
    for page in pages:
        object.__setattr__(page, "chunks", ((f"chunk{page.part.step}", len(page.entries)),))
    parts = [(HERE / name).read_text() for name in PAGELESS]
    lines = [
        *parts,
        f"const index = {json.dumps(packed(as_json(index_of(pages, {}))))}, texts = {json.dumps(packed(search_of(pages)[0]))};",
        "(async () => { let answer; const run = openIndex(JSON.parse(await unpack(index)));",
        "const search = openSearch(await unpack(texts), run.count);",
        "const wanted = (changes) => [...filtered(run, { ...NO_FILTER, ...changes }, searched(search, changes.text || ''))];",
        program,
        "console.log(JSON.stringify(answer)); })();",
    ]
    done = subprocess.run([NODE, "-"], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_script_is_in_the_page_and_its_syntax_is_right():
    assert sorted(SCRIPTS) == sorted(path.name for path in HERE.glob("*.js"))
    whole = "\n".join((HERE / name).read_text() for name in SCRIPTS)
    done = subprocess.run([NODE, "--check", "-"], input=whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_filters_choose_sessions():
    found = answer("""answer = [{}, {agent: "checker"}, {policy: "big"}, {stepFrom: 2}, {stepTo: 1}, {rewardFrom: 0}, {rewardTo: 0},
      {malformed: true}, {malformed: true, agent: "checker"}, {fault: true}, {uniform: true}, {mixed: true},
      {partition: "val"}, {partition: "train", rewardFrom: 1, rewardTo: 1}].map(wanted);""")
    assert found == [
        [0, 1, 2, 3, 4, 5], [0, 1, 3], [1], [4, 5], [0, 1, 2, 3], [0, 1, 4, 5], [0, 3],
        [1, 2], [1], [3], [4, 5], [0, 1, 2, 3],
        [], [1, 4, 5],
    ]  # fmt: skip


def test_a_search_finds_sessions_with_all_words_and_phrases():
    found = answer("""answer = ["LAMPS", "lamps bricks", '"and bricks"', '"lamps and', "slow timeout", "none-such", "  ", "1-1"]
      .map((text) => wanted({text}));""")
    assert found == [[1, 4, 5], [1, 5], [1], [1], [3], [], [0, 1, 2, 3, 4, 5], [2, 3]]


def test_a_search_in_many_lines_finds_each_of_them():
    found = answer("""
      const lines = Array.from({length: 3000}, (_, n) => n % 7 ? "" : `some word ${n}`), many = openSearch(lines.join("\\n"), 3000);
      const hits = searched(many, "word"), last = searched(many, "2996"), none = searched(openSearch("", 0), "word");
      answer = [hits.reduce((a, b) => a + b), lines.every((line, n) => hits[n] === (line ? 1 : 0)), last.indexOf(1), none.length];""")
    assert found == [429, True, 2996, 0]


def test_orders_keep_the_sessions_of_a_step_together():
    found = answer("""const all = Int32Array.from([0, 1, 2, 3, 4, 5]);
      answer = ["newest", "oldest", "lowest", "highest", "longest"].map((order) => [...ordered(run, all, order)]);""")
    assert found == [[4, 5, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [3, 0, 1, 4, 5, 2], [1, 4, 5, 0, 3, 2], [4, 0, 1, 3, 2, 5]]


def test_a_session_is_found_again_by_its_address():
    found = answer(
        'answer = [nameOf(run, 3), sessionNamed(run, "train/2/2-0/1"), sessionNamed(run, "train/9/2-0/1"), groupMembers(run, 5)];'
    )
    assert found == ["train/1/1-1/1", 5, -1, [4, 5]]


def test_characters_that_a_browser_obeys_are_written_out():
    found = answer(
        r"""answer = ["\x1b[2J", "a\u202eb", "\u2028", "\ud800", "\u{e0041}", "\u200b", "tab\tline\n", "👩‍👩‍👧 é عربي"].map(plain);"""
    )
    written_out = [r"\x1b[2J", r"a\u202eb", r"\u2028", r"\ud800", r"\u{e0041}", r"\u200b"]
    assert found == [*written_out, "tab\tline\n", "👩‍👩‍👧 é عربي"]


def test_numbers_are_short():
    found = answer(
        "answer = [1, 0.5, -0.25, 12, 0, null, 1e-9, NaN, 'nan'].map((value) => number(value)).concat([compact(1234.5), compact(0.06312), grouped(1234567)]);"
    )
    assert found == ["1.00", "0.50", "−0.25", "12", "0.00", "–", "1.0e-9", "–", "nan", "1 235", "0.0631", "1 234 567"]
