import os
import subprocess
import sys

from verl_mas.util import worker_folder


def test_a_worker_goes_to_the_folder_of_the_command_if_its_node_has_it(tmp_path, monkeypatch):
    for folder, entered in ((tmp_path, str(tmp_path)), (tmp_path / "of_another_node", "/")):
        monkeypatch.chdir("/")
        monkeypatch.setenv(worker_folder.VARIABLE, str(folder))
        worker_folder.enter()
        assert os.getcwd() == entered
        monkeypatch.chdir("/")
        worker_folder.enter()
        assert os.getcwd() == "/", "its children stay where they start"


def test_the_plugin_enters_it(tmp_path):
    program = "import os, verl_mas.plugin; print(os.getcwd())"
    environment = os.environ | {worker_folder.VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path)
