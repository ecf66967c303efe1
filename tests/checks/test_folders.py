from __future__ import annotations

from verl_mas.checks.run import check_logger


def test_verls_file_logger_may_not_write_into_the_metrics_of_the_run(two, tmp_path, monkeypatch):
    config = two(trainer__logger=["console", "file"], trainer__default_local_dir=str(tmp_path))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "other.jsonl"))
    assert list(check_logger(config)) == []
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    (error,) = check_logger(config)
    assert "leave out file" in error.fix
    config.trainer.logger = ["console"]
    assert list(check_logger(config)) == []
