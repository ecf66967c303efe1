"""What verl accepted is not asked again, and nothing else is remembered."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from verl_mas.checks import policies
from verl_mas.checks.policies import READ, refused_by_verl
from verl_mas.checks.verl import remembered


@pytest.fixture
def asked(make, tmp_path, monkeypatch):
    """Whether verl was asked about a configuration, and what the answer was."""
    calls = []

    def validate(view):
        calls.append(view)
        if view.actor_rollout_ref.rollout.n > 4:
            raise ValueError("too many")

    monkeypatch.setattr(policies, "_validate", validate)
    monkeypatch.setattr(remembered, "_remembers", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def asked(engine=None, **settings):
        calls.clear()
        return refused_by_verl(make(**settings), engine), len(calls)

    return asked


def test_an_accepted_configuration_is_remembered_by_what_verl_reads_of_it(asked):
    assert [asked() for _ in range(3)] == [("", 1), ("", 0), ("", 0)]
    assert asked(mas__branch={"k": 4}, trainer__default_local_dir="/elsewhere") == ("", 0)
    assert asked(actor_rollout_ref__actor__optim__lr=2e-6) == ("", 1)
    assert asked(trainer__nnodes=2) == ("", 1)
    assert asked(engine="torch") == ("", 1)


def test_a_refusal_is_not_remembered(asked):
    assert [asked(actor_rollout_ref__rollout__n=5) for _ in range(2)] == [("too many", 1)] * 2


def test_a_value_that_cannot_be_resolved_is_refused(asked):
    refused, calls = asked(actor_rollout_ref__rollout__n="${nowhere}")
    assert "nowhere" in refused and not calls


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"stamp": 1, "accepted": null}', "\0"])
def test_a_broken_cache_is_written_again(asked, tmp_path, text):
    asked()
    (file,) = tmp_path.rglob("*.json")
    file.write_text(text)
    assert [asked(), asked()] == [("", 1), ("", 0)]


def test_another_installation_asks_again(asked, monkeypatch):
    asked()
    monkeypatch.setattr(remembered, "_stamp", lambda: "another")
    assert asked() == ("", 1)


def test_a_folder_that_cannot_be_written_is_no_cache(asked, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert [asked(), asked()] == [("", 1)] * 2


def test_all_is_read_of_another_version_of_verl(asked, monkeypatch):
    monkeypatch.setattr(policies, "VERSION", "0.9.0")
    assert [asked(), asked(), asked(trainer__default_local_dir="/elsewhere")] == [("", 1), ("", 0), ("", 1)]
    # Hydra's own section has values that are set later.
    assert asked(hydra={"job": {"num": "???"}}) == ("", 0)


def test_what_the_validation_of_verl_reads_is_in_the_key():
    from verl.utils import config

    source = re.sub(r'\.get\("(\w+)"', r".\1", inspect.getsource(config.validate_config))
    read = re.findall(r"\bconfig\.([\w.]+)", source)
    assert [name for name in read if not f"{name}.".startswith(tuple(f"{known}." for known in READ))] == []


@pytest.mark.nightly  # two cold processes
def test_a_second_check_imports_none_of_the_large_packages(letters, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [
        *(sys.executable, "-X", "importtime", "-m", "verl_mas", "check", "+platform=cpu", "+mas=solver_verifier"),
        *("algorithm.adv_estimator=agent_grpo", f"actor_rollout_ref.model.path={letters}/model"),
        *(f"data.train_files={letters}/train.parquet", f"data.val_files={letters}/test.parquet"),
        *("actor_rollout_ref.actor.optim.lr=1e-5", "trainer.logger=[console,file]", "data.train_batch_size=8"),
        *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
        *("reward.custom_reward_function.path=pkg://verl_mas.testing.letters",),
        *("reward.custom_reward_function.name=score", f"trainer.default_local_dir={tmp_path}"),
    ]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2))
    assert first.stdout == second.stdout
    imported = [set(re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE)) for done in (first, second)]
    large = {"verl", "transformers", "pandas"}
    if version("torch").endswith("+cpu"):
        large.add("torch")  # another build is asked for the GPUs of the machine
    assert "verl" in imported[0] and not large & imported[1]
