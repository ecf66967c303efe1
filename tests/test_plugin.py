import importlib
import os
import subprocess
import sys

import pytest

from verl_mas import plugin


@pytest.mark.parametrize(("hooked", "registrar"), plugin.HOOKS.items())
def test_every_hook_names_a_module_of_verl_and_a_registrar_that_exists(hooked, registrar):
    module, function = registrar.split(":")
    assert importlib.util.find_spec(hooked) and callable(getattr(importlib.import_module(module), function))


def test_import_verl_loads_the_plugin_and_nothing_heavy_of_ours(warm_python):
    program = (
        "import sys, verl, verl_mas.plugin\n"
        "assert verl_mas.plugin.active()\n"
        "print(*[name for name in sys.modules if name.startswith('verl_mas.')])"
    )
    done = subprocess.run([warm_python, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split()) - {"verl_mas.plugin"}
    light = ("verl_mas.util", "verl_mas.errors", "verl_mas.engines.platform")
    assert [name for name in loaded - {"verl_mas.engines"} if not name.startswith(light)] == []


def test_verl_runs_without_the_plugin_when_it_is_turned_off(warm_python):
    program = "import sys, verl; assert 'verl_mas.plugin' not in sys.modules"
    environment = os.environ | {"VERL_USE_EXTERNAL_PLUGINS": "none"}
    subprocess.run([warm_python, "-c", program], env=environment, check=True)


@pytest.mark.e2e
def test_a_run_that_needs_a_plugin_which_does_not_load_stops_with_the_real_cause(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['wrapt'] = None\n")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+mas=single", "+platform=cpu"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert "import of wrapt halted" in done.stderr
    assert "ray init" not in done.stdout
