from __future__ import annotations

import os
import subprocess
import sys

from verl_mas.util import worker_folder


def test_a_worker_goes_to_the_folder_of_the_command_and_its_children_stay_where_they_start(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    monkeypatch.setenv(worker_folder.VARIABLE, str(tmp_path))
    worker_folder.enter()
    assert os.getcwd() == str(tmp_path)
    monkeypatch.chdir("/")
    worker_folder.enter()
    assert os.getcwd() == "/"


def test_a_worker_stays_where_it_is_if_its_node_does_not_have_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(worker_folder.VARIABLE, str(tmp_path / "of_another_node"))
    worker_folder.enter()
    assert os.getcwd() == str(tmp_path)


def test_the_plugin_enters_it(tmp_path):
    program = "import os, verl_mas.plugin; print(os.getcwd())"
    environment = os.environ | {worker_folder.VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path)
