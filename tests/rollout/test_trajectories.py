"""Session records: the choice of the sessions, the limit of their space, and that no written session is lost."""

import base64
from io import BytesIO

import pytest
from broken import full_disk
from PIL import Image
from session_records import Recorder

from verl_mas.config.schema import AgentSpec, TrajectorySpec
from verl_mas.errors import DataError, DiskError, FaultKind, SessionFault
from verl_mas.results.sessions.reader import SessionIndex, read_sessions
from verl_mas.rollout import trajectories
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.trajectories import ImageFiles, Space, TextPerToken, TrajectoryWriter
from verl_mas.run_folder.session_files import write_advantages
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.session import SessionResult
from verl_mas.workflows.single import Single


@pytest.fixture
def record(tmp_path):
    return Recorder(tmp_path)


def press(button: str) -> str:
    """Press a button."""
    return f"{button} is on"


def test_an_act_with_tools_is_recorded_with_its_calls_and_all_its_messages(play, tmp_path):
    script = [calls(("press", {"button": "r" * 30}), ("pres", {}), text="Now."), "Done."]
    done = play(Single, ScriptedLLM(script), agents={"solver": AgentSpec(tools=["press"])}, tools=[press])
    TrajectoryWriter(TrajectorySpec(max_text_chars=10), tmp_path, "1").write(done, "finished")
    ((act,),) = (session["acts"] for session in read_sessions(tmp_path))
    right, wrong = act["tool_calls"]
    assert (right["name"], right["result"], right["error"]) == ("press", "r" * 10 + "... (36 characters)", None)
    assert right["arguments"].endswith("... (44 characters)") and right["seconds"] > 0 and right["reward"] is None
    assert wrong["error"].startswith("Unknown fu") and wrong["result"] is None
    assert [message["role"] for message in act["steps"]] == ["assistant", "tool", "tool", "assistant"]
    first, last = act["steps"][0], act["steps"][-1]
    assert (first["content"], last["content"], act["text"]) == ("Now.", "Done.", "Done.")
    assert first["tool_calls"][0]["function"]["arguments"].endswith("... (44 characters)")
    assert first["tool_calls"][1]["function"] == {"name": "pres", "arguments": {}}


def files(folder):
    return sorted(
        path.name.partition("-a-")[0] + "".join(path.suffixes) for path in folder.rglob("*") if path.is_file()
    )


def test_a_session_is_on_disk_when_it_has_ended_and_its_step_is_compressed_later(record, tmp_path):
    for step, validate in ((1, False), (1, True), (2, False)):
        record(step, validate=validate)
    assert files(tmp_path) == ["000001.jsonl", "000001.jsonl", "000002.jsonl"]
    before = list(read_sessions(tmp_path))
    record.compress()
    assert files(tmp_path) == ["000001.parquet", "000001.parquet", "000002.parquet"]
    assert list(read_sessions(tmp_path)) == before
    record(2, session=1)
    record.compress()
    assert [entry.session for entry in SessionIndex(tmp_path, step=2).entries] == [0, 1]


@pytest.mark.parametrize("form", ["zst", "jsonl"])
def test_a_large_file_is_compressed_before_its_step_has_ended_unless_lines_are_to_stay_plain(
    tmp_path, monkeypatch, form
):
    monkeypatch.setattr(trajectories, "LARGE", 2000)
    record = Recorder(tmp_path, format=form)
    for session in range(5):
        record(1, session=session)
    assert set(files(tmp_path)) == {"000001.jsonl"} | ({"000001.parquet"} if form == "zst" else set())
    assert [entry.session for entry in SessionIndex(tmp_path).entries] == [0, 1, 2, 3, 4]
    record.compress()
    assert set(files(tmp_path)) == {f"000001.{'parquet' if form == 'zst' else form}"}


def test_a_record_that_does_not_fit_on_the_disk_is_an_error_and_leaves_no_part_of_a_line(record, tmp_path):
    record(1)
    (path,) = (tmp_path / "train").iterdir()
    whole = path.read_bytes()
    with full_disk(len(whole) + 100):
        with pytest.raises(DiskError, match=r"-a-\w+\.jsonl cannot be written: File too large; .* GB are free"):
            record(1, session=1)
        with pytest.raises(DiskError, match=r"000001-a-advantages\.jsonl\.zst cannot be written"):
            write_advantages(tmp_path, 1, "a", {f"1-0_{n}_0": n / 7 for n in range(1000)})
    assert path.read_bytes() == whole
    with full_disk(100), pytest.raises(DiskError, match=r"-a-\w+\.jsonl cannot be written"):
        record.compress()
    record(1, session=2)
    assert [session["session"] for session in read_sessions(tmp_path)] == [0, 2]


def test_a_record_that_is_not_json_is_refused_with_the_reason(tmp_path, play):
    played = play(Single, ScriptedLLM("4"))
    played.session.outcome.info[1, 2] = 0.5
    with pytest.raises(DataError, match=r"keys must be str(.|\n)*use text as keys"):
        TrajectoryWriter(TrajectorySpec(), tmp_path, "a").write(played, "finished")
    assert not list(tmp_path.rglob("*.jsonl"))


def test_sessions_are_sampled_the_same_way_every_time_and_clipped(tmp_path):
    record = Recorder(tmp_path, sampling_rate=0.3, max_text_chars=5)
    for attempt in ("a", "b"):
        for session in range(200):
            record(0, attempt, session, text="long \ud800 answer")
    every = list(read_sessions(tmp_path, attempts="all"))
    first, second = ([s for s in every if s["attempt"] == attempt] for attempt in ("a", "b"))
    assert [s["session"] for s in first] == [s["session"] for s in second] and 30 < len(first) < 90
    assert first[0]["acts"][0]["messages"][0]["content"] == "long ... (13 characters)"


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([0.5, 1.0, 0.25, 0.75], [(1, 1.0), (2, 0.25)]),
        ([0.5] * 4, [(0, 0.5), (3, 0.5)]),  # two records show that all rewards are equal
        ([0.0, 1.0], []),
    ],
)
def test_the_best_and_the_worst_of_a_group_are_kept_and_the_others_are_sampled(tmp_path, rewards, kept):
    record = Recorder(tmp_path, sampling_rate=0.0)
    for session, reward in enumerate(rewards):
        record(1, session=session, reward=reward)
    assert not (tmp_path / "train").is_dir()
    record.writer().end_group("1-0")
    index = SessionIndex(tmp_path)
    assert sorted((entry.session, entry.reward) for entry in index.entries) == kept
    assert {entry.uniform for entry in index.entries} <= {len(set(rewards)) == 1}
    assert index.left_out == len(rewards) - len(kept)


@pytest.mark.parametrize("failed", [True, False])
def test_a_session_with_a_fault_is_always_recorded_and_at_once(tmp_path, play, failed):
    writer = TrajectoryWriter(TrajectorySpec(sampling_rate=0.0), tmp_path, "a")
    fault = SessionFault(FaultKind.TIMEOUT, "slow", agent="solver", turn=0)
    writer.write(SessionResult(play(Single, ScriptedLLM("4")).session, [fault], failed), "dropped")
    (entry,) = SessionIndex(tmp_path).entries
    assert (entry.status, entry.faults) == ("dropped", ["timeout"])


def test_the_rate_is_halved_whenever_half_of_the_rest_of_the_room_is_used(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "there").write_bytes(b"x" * 2**20)
    space = Space(3 / 1024, tmp_path, workers=2)
    assert space.limit == 2**20
    rates = []
    for used in (0, 0.49, 0.51, 0.74, 0.76, 0.99, 1):
        space.used = int(used * 2**20)
        rates.append(space.rate)
    assert rates == [1, 1, 0.5, 0.5, 0.25, 1 / 64, 0]
    assert Space(None, tmp_path, 1).rate == 1 and Space(0.5 / 1024, tmp_path, 1).rate == 0


def test_without_space_sessions_are_counted_and_not_recorded(tmp_path, play):
    writer = TrajectoryWriter(TrajectorySpec(max_gib=1500 / 2**30), tmp_path, "a")
    fault = SessionFault(FaultKind.TIMEOUT, "slow", agent="solver", turn=0)
    for _ in range(3):
        writer.write(SessionResult(play(Single, ScriptedLLM("4")).session, [fault]), "finished")
    written = writer.compress()
    assert written.without_space == 2 and len(SessionIndex(tmp_path).entries) == 1
    assert written.record_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert writer.compress() == SessionCounts()


def picture(colour="red"):
    return Image.new("RGB", (4, 3), colour)


def png(colour="red"):
    file = BytesIO()
    picture(colour).save(file, "PNG")
    return file.getvalue()


def test_an_image_is_written_once_however_often_it_is_in_a_message(tmp_path):
    images = ImageFiles(tmp_path)
    parts = [images({"type": "image", "image": picture(colour)}) for colour in ("red", "blue", "red")]
    assert parts[0] == parts[2] != parts[1]
    assert {part["file"] for part in parts} == {f"images/{path.name}" for path in (tmp_path / "images").iterdir()}
    read = Image.open(tmp_path / parts[1]["file"])
    assert (read.size, read.getpixel((0, 0))) == ((4, 3), (0, 0, 255))
    assert images.pop_bytes() == sum(path.stat().st_size for path in (tmp_path / "images").iterdir())
    assert images.pop_bytes() == 0
    # Another worker of the run.
    other = ImageFiles(tmp_path)
    assert other({"type": "image", "image": picture()}) == parts[0] and other.pop_bytes() == 0


def test_what_a_kill_left_of_an_image_is_not_taken_for_it(tmp_path):
    part = ImageFiles(tmp_path / "of_another_run")({"type": "image", "image": picture()})
    left = tmp_path / f"{part['file']}.0123abcd.new"
    left.parent.mkdir()
    left.write_bytes(png()[:20])
    assert ImageFiles(tmp_path)({"type": "image", "image": picture()}) == part
    assert Image.open(tmp_path / part["file"]).size == (4, 3)


DATA = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


IMAGES = [
    *({"type": "image", "bytes": png(), "image": picture()}, {"type": "image", "image": png()}),
    *({"type": "image_url", "image_url": {"url": DATA}}, {"type": "image_url", "image_url": DATA}),
]


@pytest.mark.parametrize(
    ("part", "content", "ending"),
    [
        *((part, png(), ".png") for part in IMAGES),
        *(
            ({"type": "image", "image": content}, content, end)
            for content, end in ((b"\xff\xd8\xff", ".jpg"), (b"?", ".bin"))
        ),
    ],
)
def test_the_bytes_of_an_image_file_are_kept_as_they_are(part, content, ending, tmp_path):
    written = ImageFiles(tmp_path)(part)
    assert written["type"] == "image" and written["file"].endswith(ending)
    assert (tmp_path / written["file"]).read_bytes() == content


def test_an_address_stays_and_what_is_not_an_image_leaves_its_type(tmp_path):
    for part, expected in (
        ({"type": "image", "image": "/data/1.png"}, {"url": "/data/1.png"}),
        ({"type": "image_url", "image_url": {"url": "http://x/1.png"}}, {"url": "http://x/1.png"}),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}, {}),
        *(({"type": "image", **none}, {}) for none in ({"image": 5}, {})),
    ):
        assert ImageFiles(tmp_path)(part) == {"type": "image", **expected}
    assert not (tmp_path / "images").exists()


class Pieces:
    """A tokenizer of characters that drops a space at the start of a text, as some decoders do."""

    def __init__(self):
        self.decoded = 0

    def encode(self, text, add_special_tokens=True):
        return [ord(character) for character in text]

    def decode(self, ids, skip_special_tokens=False):
        self.decoded += 1
        return "".join(map(chr, ids)).removeprefix(" ")


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 🎉🎉", " two  spaces "])
def test_pieces_join_to_the_text_and_a_character_belongs_to_its_last_token(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = TextPerToken(tokenizer)(ids)
    assert "".join(texts) == text and len(texts) == len(ids)
    assert len(ids) == len(text.encode()), "a token is a byte, so that characters have several"
    assert [piece for piece in texts if piece] == list(text)


def test_bytes_that_are_no_text_are_shown_as_such_and_cost_no_token(tokenizer):
    ids = tokenizer.encode("aé", add_special_tokens=False)
    texts = TextPerToken(tokenizer)([*ids[:2], *ids[:1]])
    assert len(texts) == 3 and texts[0] == "a" and "".join(texts).startswith("a\ufffd")
    assert TextPerToken(tokenizer)(ids[:2])[1] == "\ufffd"


def test_spaces_at_the_start_of_a_token_are_kept_and_a_token_is_decoded_once():
    pieces = Pieces()
    texts = TextPerToken(pieces)
    assert texts(pieces.encode(" a b")) == [" ", "a", " ", "b"]
    before = pieces.decoded
    assert texts(pieces.encode("b a ")) == ["b", " ", "a", " "] and pieces.decoded == before
