"""Pages that are written, and arguments that are refused."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from commands import output_of
from view_runs import HOSTILE, act, session, write_metrics, write_run

from verl_mas.errors import ConfigError, DataError
from verl_mas.results.sessions.view import ViewOptions, write_view
from verl_mas.results.sessions.view.page import refresh

GROUPS = [session(step, f"{step}-{task}", n) for step in (1, 2, 3) for task in (0, 1) for n in (0, 1)]


@pytest.fixture
def run(tmp_path) -> Path:
    return write_metrics(write_run(tmp_path / "run", GROUPS))


def unpacked(payload: str) -> str:
    return gzip.decompress(base64.b64decode(payload)).decode()


def payloads(page: Path) -> dict[str, str]:
    """Read the data of a page from the page itself, or from the folder next to it."""
    inside = dict(re.findall(r'data-name="([a-z0-9-]+)">([^<]*)<', page.read_text()))
    beside = page.with_name(f"{page.stem}_data").glob("*.js")
    files = dict(re.fullmatch(r'verlMasView\.arrive\("(.+)","(.+)"\);\n', file.read_text()).groups() for file in beside)
    return {name: payload if name == "live" else unpacked(payload) for name, payload in {**inside, **files}.items()}


def index_of(page: Path) -> dict:
    return json.loads(payloads(page)["index"])


def bodies(page: Path) -> list[dict]:
    """All sessions, in the order of the index."""
    found, index = payloads(page), index_of(page)
    places = zip(index["columns"]["chunk"], index["columns"]["place"], strict=True)
    return [json.loads(found[index["chunks"][chunk]])["sessions"][place] for chunk, place in places]


def test_one_file_has_all_sessions_in_the_order_of_the_run(run):
    page, view = write_view(run)
    assert page == run / "view.html" and view.count == 12
    assert not page.with_name("view_data").exists()
    assert [(body["uid"], body["session"]) for body in bodies(page)] == [(r["uid"], r["session"]) for r in GROUPS]
    index = index_of(page)
    assert index["blocks"] == {"run": [""] * 3, "partition": ["train"] * 3, "step": [1, 2, 3], "size": [4, 4, 4]}
    assert index["agents"] == ["solver", "checker"]
    assert index["curves"]["values"]["agent/solver/reward/score"] == [0.25, 0.5, 0.75]


def test_many_sessions_are_in_a_folder_beside_the_page(run, tmp_path):
    page, _ = write_view(run, ViewOptions(tmp_path / "new" / "page.html", inline=10))
    assert 'data-folder="page_data"' in page.read_text() and 'data-name="index' not in page.read_text()
    assert len(bodies(page)) == 12
    # A prompt is stored once per chunk.
    chunk = json.loads(payloads(page)[index_of(page)["chunks"][0]])
    assert [message["content"] for message in chunk["messages"]] == ["2 + 2?", "You are solver.", "You are checker."]
    assert chunk["sessions"][3]["acts"][1]["messages"] == [2, 0]


def test_no_text_of_a_model_is_in_the_page_as_it_is(tmp_path):
    records = [session(uid=f"1-{n}", acts=[act(agent=text, text=text)]) for n, text in enumerate(HOSTILE)]
    page, _ = write_view(write_run(tmp_path / "<script>run", records))
    text = page.read_text()
    assert [body["acts"][0]["text"] for body in bodies(page)] == HOSTILE
    assert "owned" not in text and "\u202e" not in text and "<title>&lt;script&gt;run" in text
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts == [f'<script type="text/plain" data-name="{name}">' for name in payloads(page)] + ["<script>"]


def test_only_the_script_and_the_style_of_the_page_are_allowed(run):
    text = write_view(run)[0].read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    for tag in ("script", "style"):
        own = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[-1]
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy and not any(word in policy for word in ("unsafe", "http", "connect"))
    # A page that loads anything from a network has an address.
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}


def test_an_earlier_page_is_replaced_with_its_data_and_no_other_file_is_without_force(run, tmp_path):
    out = tmp_path / "page.html"
    write_view(run, ViewOptions(out, inline=10))
    write_view(run, ViewOptions(out))
    assert not out.with_name(f"{out.stem}_data").exists(), "data of the earlier page are left behind"
    out.write_text("<!doctype html>my thesis on verl-mas view")
    with pytest.raises(ConfigError, match=r"is no such page(.|\n)*--force"):
        write_view(run, ViewOptions(out))
    assert "my thesis" in out.read_text()
    write_view(run, ViewOptions(out, force=True))
    assert "my thesis" not in out.read_text()


def test_a_live_page_that_another_command_replaces_ends_with_the_reason(run):
    page, view = write_view(run, live=True)
    write_view(run)
    with pytest.raises(DataError, match="no longer live"):
        refresh(page, view)
    write_view(run, live=True)
    assert index_of(page)["columns"]["session"]


def test_force_replaces_what_a_live_page_that_was_killed_has_left_and_nothing_that_is_not_of_a_page(run):
    (run / "view_data").mkdir()
    (run / "view_data" / "thesis.js").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.js"):
        write_view(run, ViewOptions(force=True))
    assert not (run / "view.html").exists()
    (run / "view_data" / "thesis.js").unlink()
    for name, content in (("index.js", 'verlMasView.arrive("index","'), ("live.js.new", "verlMas"), ("a.js.new", "")):
        (run / "view_data" / name).write_text(content)
    write_view(run)
    assert not (run / "view_data").exists()


def test_what_cannot_be_viewed_is_refused(run, tmp_path, capsys):
    empty = write_metrics(tmp_path)
    for arguments, code, message in (
        ([tmp_path / "none"], 1, "is not there"),
        ([run.parents[1]], 1, "is not the folder of a run"),
        ([empty], 1, f"fix:  give {run}, which has them"),
        ([run, "--steps", "7-9"], 1, "use --steps 1-3"),
        ([run, "--steps", "3-1"], 1, "use --steps 3-8"),
        ([run, "--limit", "0"], 2, "at least 1"),
        ([run, "--port", "8123"], 2, "add --notes"),
        ([run, "--out", tmp_path / "page.pdf"], 1, "page.html"),
        ([run, "--out", run / "metrics.jsonl" / "page.html"], 1, "cannot be written"),
    ):
        error = output_of(capsys, "view", *arguments, code=code)
        assert message in error and "rule:" in error and "fix:" in error, error
    other = write_run(tmp_path / "other", [session(8, "8-0")])
    for runs, message in (([run, other], "have no task in common at the same step"), ([run, run], "twice")):
        assert message in output_of(capsys, "view", *runs, code=2 if message == "twice" else 1)
    assert "3 runs" in output_of(capsys, "view", run, other, empty, code=2)
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "trajectories"]
    assert json.loads(output_of(capsys, "view", run, "--json")) == {"page": str(run / "view.html"), "sessions": 12}


def test_steps_and_limit_choose_sessions_and_a_validation_follows_the_training_of_its_step(run):
    assert index_of(write_view(run, ViewOptions(steps=(2, 2)))[0])["blocks"]["step"] == [2]
    page, _ = write_view(run, ViewOptions(limit=6, force=True))
    assert index_of(page)["blocks"] == {"run": [""] * 2, "partition": ["train"] * 2, "step": [2, 3], "size": [2, 4]}
    assert index_of(page)["groups"]["uid"] == ["2-1", "3-0", "3-1"], "not the newest ones"
    write_run(run, [session(2, "val2-0", partition="val")])
    blocks = index_of(write_view(run, ViewOptions(force=True))[0])["blocks"]
    assert list(zip(blocks["partition"], blocks["step"], strict=True))[1:3] == [("train", 2), ("val", 2)]


def test_a_run_without_metrics_has_the_rewards_of_its_sessions(tmp_path):
    acts = [act(advantage=None, seconds=float("nan"))]
    sessions = [session(1, reward=1.0), session(1, number=1, reward=0.0), session(2, reward=None, acts=acts)]
    page, _ = write_view(write_run(tmp_path, sessions))
    assert bodies(page)[2]["acts"][0]["seconds"] == "NaN", "numbers that JSON does not have are texts"
    assert index_of(page)["curves"] == {"steps": [1], "values": {"session/reward/mean": [0.5]}}


def test_an_image_is_in_the_page_and_no_other_file_is(tmp_path):
    images = tmp_path / "trajectories" / "images"
    images.mkdir(parents=True)
    (images / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "key.png").write_bytes(b"not of the run")
    parts = [{"type": "image", "file": name} for name in ("images/a.png", "../key.png", "images/none.png")]
    page, _ = write_view(write_run(tmp_path, [session(acts=[act(messages=[{"role": "user", "content": parts}])])]))
    chunk = json.loads(payloads(page)[index_of(page)["chunks"][0]])
    stored = next(message for message in chunk["messages"] if isinstance(message["content"], list))["content"]
    assert [part.get("data") for part in stored] == ["data:image/png;base64,iVBORw==", None, None]


def test_a_live_page_that_is_opened_before_the_first_session_gets_what_is_new_and_only_that(tmp_path):
    run = write_metrics(tmp_path)
    page, view = write_view(run, live=True)
    assert index_of(page)["columns"]["session"] == []
    write_run(run, GROUPS)
    assert refresh(page, view)
    before = payloads(page)
    assert refresh(page, view) is False and payloads(page) == before
    write_run(run, [session(3, "3-2"), session(4, "4-0")], worker="1")
    assert refresh(page, view) is True
    after = payloads(page)
    assert view.count == len(bodies(page)) == 14 and after["live"] != before["live"]
    kept = set(before) & set(after) - {"index", "search", "live"}
    assert {name[:12] for name in kept} >= {"train-000001", "train-000002"}


def test_a_live_page_with_a_limit_has_the_newest_sessions(run):
    page, view = write_view(run, ViewOptions(limit=6), live=True)
    write_run(run, [session(4, "4-0", number) for number in range(3)], worker="1")
    assert refresh(page, view)
    assert (index_of(page)["blocks"]["step"], index_of(page)["blocks"]["size"]) == ([3, 4], [3, 3])
