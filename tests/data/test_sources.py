"""Sets whose repositories have a loading script are read from their files; the hub is a folder."""

import json

import code_rows as rows
import huggingface_hub
import pyarrow as pa
import pytest

from verl_mas.config.hydra.recipe.code.sets import TEST_SETS, TRAIN_SETS
from verl_mas.config.hydra.recipe.tool_math.data import ToolMath
from verl_mas.data import sources
from verl_mas.errors import ConfigError

SETS = {one.name: one for one in (*TRAIN_SETS, *TEST_SETS)}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Serve the files of a folder as those of a repository; return the list of requests."""
    asked = []

    def names(repository, repo_type, revision):
        return [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]

    def download(repository, name, repo_type, revision):
        asked.append((repository, name, repo_type, revision))
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "list_repo_files", names)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def test_livecodebench_v6_is_all_six_files_and_v5_the_first_five(tmp_path, repository):
    for name in ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7))):
        (tmp_path / name).write_text(json.dumps(rows.livecodebench(question_id=name)) + "\n")
    read, revision = sources.from_hub(SETS["livecodebench_v6"])
    assert [row["question_id"] for row in read][:2] == ["test.jsonl", "test2.jsonl"]
    assert len(repository) == 6 and {asked[3] for asked in repository} == {revision}
    assert len(list(sources.from_hub(SETS["livecodebench_v5"])[0])) == 5


def test_taco_is_its_arrow_files_in_their_order(tmp_path, repository):
    (tmp_path / "train").mkdir()
    for part in (1, 0):
        table = pa.Table.from_pylist([rows.apps(what=f"part {part}")])
        with pa.ipc.new_stream(tmp_path / "train" / f"data-0000{part}-of-00002.arrow", table.schema) as file:
            file.write_table(table)
    read = list(sources.from_hub(SETS["taco"])[0])
    assert ["part 0" in row["question"] for row in read] == [True, False]


def test_a_repository_without_the_files_of_a_set_is_refused_with_their_names(tmp_path, repository):
    (tmp_path / "apps.py").write_text("")
    with pytest.raises(ConfigError, match=r"^codeparrot/apps at 21e74d\w+ has no file train.jsonl\n"):
        sources.from_hub(SETS["apps"])


def test_every_code_set_and_polaris_is_pinned_with_its_number_of_rows():
    pinned = (*SETS.values(), *ToolMath.train_sets)
    assert all(each.revision and len(each.revision) == 40 and each.rows for each in pinned)
