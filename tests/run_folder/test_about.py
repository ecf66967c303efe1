from verl_mas.run_folder.about import FILE, AboutFile, attempts, read_about


def start(**values):
    return {"started": "now", "resumed_from": None, **values}


def test_every_start_is_kept_and_the_settings_are_those_of_the_last_one(tmp_path):
    AboutFile(tmp_path, start(command="a"), {"data": {"lr": 1, "n": 2}, "old": 1}).end({"by": "finished", "step": 4})
    AboutFile(tmp_path, start(command="b", resumed_from=4), {"data": {"lr": 1, "n": 3}, "new": [1]})
    found = read_about(tmp_path)
    first, second = attempts(found)
    assert (first["command"], first["ended"]) == ("a", {"by": "finished", "step": 4})
    assert second["changed"] == {"data.n": [2, 3], "old": [1, None], "new": [None, [1]]}
    assert "ended" not in second, "it trains, or was killed"
    assert found["config"] == {"data": {"lr": 1, "n": 3}, "new": [1]}


def test_no_secret_is_written(tmp_path):
    about = AboutFile(tmp_path, start(command="x --token abc"), {"api_key": "very secret", "env": {"A": "very secret"}})
    about.end({"by": "Error: hf_abcdefghijklmnopqrst"})
    text = (tmp_path / FILE).read_text()
    assert "very secret" not in text and "hf_abc" not in text


def test_a_damaged_file_is_kept_aside_and_the_run_starts(tmp_path, caplog):
    (tmp_path / FILE).write_text("[1")
    AboutFile(tmp_path, start(), {1: {2.5}})
    assert read_about(tmp_path)["config"] == {"1": "{2.5}"}, "what YAML cannot hold is text"
    assert len(attempts(read_about(tmp_path))) == 1
    assert (tmp_path / f"{FILE}.damaged").read_text() == "[1" and "is replaced" in caplog.text
    assert read_about(tmp_path / "other") == {} and attempts({}) == attempts({"attempts": "x"}) == []
