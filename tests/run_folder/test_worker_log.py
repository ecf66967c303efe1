from unittest.mock import Mock

import pytest
from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

from verl_mas.run_folder import worker_log
from verl_mas.run_folder.worker_log import FILE, PRINTER, WorkerLog, keep_log

RUNNER, AGENTS, WORKER = "TaskRunnerV1", "MasAgentLoopWorker", "WorkerDict"
AT = "2026-11-26 07:48:36,077"
UNAVAILABLE = "/verl/engine.py:32: UserWarning: veomni engine is not available: None\n  warnings.warn()"


@pytest.fixture
def printed(tmp_path, capsys):
    log = WorkerLog(tmp_path)

    def printed(text: str, name: str = RUNNER, pid: int | str = 7, is_err: bool = True) -> str:
        log({"lines": text.split("\n"), "pid": pid, "ip": "10.0.0.1", "is_err": is_err, "actor_name": name})
        found = capsys.readouterr()
        return (found.err if is_err else found.out).removesuffix("\n")

    return printed


def test_of_the_trainer_are_shown_its_lines_with_the_time_alone(printed):
    assert printed(f"INFO:{AT}:folder: runs/a\n  settings run.yaml\n\rTraining:   5%|▌ | 1/20") == (
        "07:48:36 folder: runs/a\n  settings run.yaml"
    )
    for step in (1, 2):
        assert printed(f"INFO:{AT}:step {step} | rollout 1s") == f"07:48:36 step {step} | rollout 1s"
    assert printed("step:1 - a:1\n('Initial validation: {'\n ' a}')", is_err=False) == ""


def test_a_warning_is_shown_once_whichever_process_gives_it(printed):
    assert printed(f"WARNING:{AT}:3 sessions failed\n  in a.py") == "07:48:36 WARNING: 3 sessions failed\n  in a.py"
    assert printed("WARNING:2026-11-27 00:00:00,001:4 sessions failed\n  in a.py", AGENTS) == ""
    assert printed(f"a.py:3: RuntimeWarning: overflow\n  a * b\n{UNAVAILABLE}", WORKER) == (
        "(WorkerDict pid=7) a.py:3: RuntimeWarning: overflow\n(WorkerDict pid=7)   a * b"
    )


def test_an_error_and_its_traceback_are_shown_each_time(printed):
    trace = "Traceback (most recent call last):\n  File 'a.py'\n    a()\n\nValueError: no engine is not available"
    for text in (trace, trace, "ERROR 11-26 07:48:36 [core.py:1] no memory", f"ERROR:{AT}:no", "KeyError: 'a'"):
        assert printed(text, WORKER).count("(WorkerDict pid=7) ") == len(text.split("\n"))
    assert "a worker died" in printed("a worker died", "", "raylet", is_err=False)


def test_what_the_users_code_prints_is_shown_each_time_and_what_engines_print_is_not(printed):
    for _ in range(2):
        text = "Using dataset class: A\n{\n  'a': 1\n}"
        assert printed(text, AGENTS, is_err=False).count("(MasAgentLoopWorker pid=7) ") == 3
    assert printed("After FSDP, memory allocated\nINFO 11-26 [a.py:1] loads", WORKER, is_err=False) == ""


def test_every_line_is_in_the_file_with_its_process_and_no_secret_is(printed, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "open-sesame")
    printed("{'a': {'api_key': 'hidden'},\n 'b'", is_err=False)
    printed(": 1}", is_err=False)
    printed(f"INFO:{AT}:folder of this run: runs/a")
    printed("dataset len: 3", is_err=False)
    printed("After FSDP with open-sesame", WORKER, 8, is_err=False)
    WorkerLog(tmp_path)  # a resumed run opens the file again
    assert (tmp_path / FILE).read_text() == (
        f"(TaskRunnerV1 pid=7, ip=10.0.0.1) INFO:{AT}:folder of this run: runs/a\n"
        "(TaskRunnerV1 pid=7, ip=10.0.0.1) dataset len: 3\n"
        "(WorkerDict pid=8, ip=10.0.0.1) After FSDP with (not written)\n"
    )


def test_rays_printer_is_replaced_when_ray_has_started_and_only_where_it_prints(tmp_path, monkeypatch):
    hooks, theirs = [], Mock()
    monkeypatch.setattr(worker_log, "_post_init_hooks", hooks)
    monkeypatch.setattr(dispatcher, "handlers", [])
    keep_log(tmp_path / "run")
    (start,) = hooks
    start()
    assert dispatcher.handlers == [] and not (tmp_path / "run").exists(), "log_to_driver=false"
    dispatcher.handlers = [("other", theirs), (PRINTER, theirs)]
    start()
    (other, (name, ours)) = dispatcher.handlers
    assert other == ("other", theirs) and name == PRINTER and isinstance(ours, WorkerLog)
