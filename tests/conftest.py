"""Shared fixtures: a tiny task, the command that a user types, an HTTP endpoint, composed configurations."""

import functools
import gc
import io
import json
import os
import pickle
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import omegaconf.base
import pytest
import yaml
from data_rows import QUESTIONS
from endpoint import Answer, Endpoint, serving
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from omegaconf import DictConfig, OmegaConf
from omegaconf.grammar_parser import parse
from pages.entry_points import stale
from ray_cluster import RayCluster
from warm_python import WarmPython

from verl_mas.config.compose import compose
from verl_mas.run_folder.metrics.table import described
from verl_mas.verl_.row import RowTags

ROOT = Path(__file__).parents[1]
INSTALLED = ("hydra", "main", "schema")  # Hydra's names for its own files, verl's files and its ConfigStore


def pytest_configure(config: pytest.Config) -> None:
    if problem := stale(ROOT):
        raise pytest.UsageError(problem)
    # Tests and runs share few cores, and a warm process cannot be forked with more threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ray notes its running clusters in this folder. Tests use another folder, so that they join no cluster of the user.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="mas-")
    # verl logs to wandb by default. Offline, tests do not depend on a key on this machine.
    os.environ["WANDB_MODE"] = "offline"
    # Keep the cache of `verl-mas check` out of the user's folder.
    os.environ["XDG_CACHE_HOME"] = os.environ["RAY_TMPDIR"]
    config.add_cleanup(lambda: shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True))
    # Hundreds of tests compose verl's configuration, which is mostly reading YAML in Python. libyaml is faster.
    yaml.SafeLoader = yaml.CSafeLoader
    # Parse each interpolation once: a configuration has hundreds, mostly the same in every test.
    vars(omegaconf.base)["parse"] = functools.cache(parse)
    # Read each YAML text once: a composition reads dozens of files, mostly the same in every test.
    setattr(OmegaConf, "load", reading_once(OmegaConf.load))  # noqa: B010
    # Merge each list of files once: most tests compose the same files with different overrides.
    merge = ConfigLoaderImpl._compose_config_from_defaults_list  # noqa: SLF001
    setattr(ConfigLoaderImpl, merge.__name__, merging_once(merge))


def reading_once(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `load`: for a text that was read before, return a copy of the first result."""
    dumps: dict[str, bytes] = {}

    def read(file: Any) -> Any:
        if not isinstance(file, io.TextIOBase):
            return load(file)
        text = file.read()
        if text not in dumps:
            file.seek(0)
            dumps[text] = pickle.dumps(load(file))
        return pickle.loads(dumps[text])

    return read


def merging_once(merge: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Wrap `merge`: for a list of files of Hydra, verl and verl-mas that was merged before, return a copy of the
    result."""
    dumps: dict[str, bytes] = {}

    def merged(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        sources = repo.get_sources()
        if any(source.provider not in INSTALLED and not source.path.startswith("verl_mas.") for source in sources):
            return merge(self, defaults, repo)
        if (key := f"{sources} {defaults}") not in dumps:
            dumps[key] = pickle.dumps(merge(self, defaults, repo))
        config = pickle.loads(dumps[key])
        assert isinstance(config, DictConfig)
        return config

    return merged


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One worker process of pytest runs a whole file of real runs. The longest files start first, so that workers end
    # together.
    items.sort(key=lambda item: "tests/trainer/test_" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Freeze all imported objects, or the garbage collector would traverse them in every composition."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # `check_workflow` asks for the number of frozen objects, and counting traverses them.
    setattr(gc, "get_freeze_count", functools.cache(gc.get_freeze_count))  # noqa: B010


@dataclass(frozen=True)
class Trained:
    """A finished `python -m verl.trainer.main_ppo`."""

    exit_code: int
    output: str
    folder: Path

    @property
    def steps(self) -> dict[int, dict[str, float]]:
        """The logged metrics, by step. The table of metrics describes each of them."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        steps = {record["step"]: record["data"] for record in map(json.loads, lines)}
        assert [name for values in steps.values() for name in values if not described(name)] == []
        return steps

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"


@pytest.fixture(autouse=True)
def no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset VERL_PLATFORM, which `+platform=cpu` sets in the process that composes: here the test's own."""
    # Set it first, so that monkeypatch knows it and removes a value that the test sets.
    monkeypatch.setenv("VERL_PLATFORM", "")
    monkeypatch.delenv("VERL_PLATFORM")
    # COLUMNS would give output the width of the user's terminal.
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task of recipes/first_run: a folder with a random tiny model and its data."""
    folder = tmp_path_factory.mktemp("letters")
    # Run it in this process, which has already imported the libraries of the module.
    with patch.object(sys, "argv", ["letters", str(folder)]):
        runpy.run_path(str(ROOT / "verl_mas/testing/letters.py"), run_name="__main__")
    return folder


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A Python that starts with torch imported. The workers of a Ray cluster that it starts have torch, too."""
    if sys.platform != "linux":
        # The templates need process descriptors.
        yield sys.executable
        return
    with WarmPython() as warm:
        yield str(warm.executable)


@pytest.fixture
def ray_here(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray cluster whose driver is the test."""
    import ray

    monkeypatch.setattr(sys, "executable", warm_python)
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def ray_cluster(warm_python: str) -> Iterator[RayCluster]:
    with RayCluster(warm_python) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def main_ppo(letters: Path, warm_python: str, ray_cluster: RayCluster) -> Callable[..., Trained]:
    """Run verl's own entry point on the letters task until it ends.

    `alone`: start a Ray cluster and cold processes for this run, as a user's command does. It takes half a minute
    longer.
    """

    def train(
        folder: Path,
        *overrides: str,
        recipe: str | None = "first_run/laptop",
        timeout: float = 420,
        alone: bool = False,
    ) -> Trained:
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable if alone else warm_python,
            *("-m", "verl.trainer.main_ppo", "+platform=cpu"),
            *([f"+recipe={recipe}"] if recipe else []),
            f"data.train_files={letters}/train.parquet",
            f"data.val_files={letters}/test.parquet",
            f"actor_rollout_ref.model.path={letters}/model",
            f"trainer.default_local_dir={folder}/checkpoints",
            f"hydra.run.dir={folder}/hydra",
            "trainer.val_before_train=false",
            *overrides,
        ]
        environment = os.environ | {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), "OMP_NUM_THREADS": "1"}
        if not alone:
            environment, joining = ray_cluster.joined(environment)
            command += joining
        log = folder / "log.txt"
        try:
            with log.open("w") as out:
                done = subprocess.run(
                    command, cwd=folder, env=environment, stdout=out, stderr=out, timeout=timeout, check=False
                )
        finally:
            if not alone:
                ray_cluster.wait_until_empty()
        return Trained(done.returncode, log.read_text(errors="replace"), folder)

    return train


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Endpoint]]:
    with ExitStack() as running:
        yield lambda answer: running.enter_context(serving(answer))


# A configuration of verl's own, composed once, with a team on top.
BASE = [
    "+platform=cpu",
    "algorithm.adv_estimator=agent_grpo",
    "actor_rollout_ref.model.path=hub/tiny",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
    "trainer.save_freq=20",
    *QUESTIONS,
]


@pytest.fixture
def trickling() -> Iterator[str]:
    """The address of a server that sends an endless body, a few bytes at a time."""

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with suppress(OSError), connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"[[[")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"


@pytest.fixture(scope="session")
def composed() -> Callable[[str], DictConfig]:
    """Compose a team's configuration once, as this takes a second, and return copies of it."""
    compose_once = functools.cache(lambda team: compose([f"+mas={team}", *BASE]))
    return lambda team: compose_once(team).copy()


@pytest.fixture
def make(composed: Callable[[str], DictConfig]) -> Callable[..., DictConfig]:
    def make(team: str = "solver_verifier", **settings: object) -> DictConfig:
        """`mas__policies={...}` sets mas.policies."""
        config = composed(team)
        for key, value in settings.items():
            OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
        return config

    return make


@pytest.fixture
def two(make: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """A solver and a verifier on a policy each."""

    def two(**settings: object) -> DictConfig:
        team: dict[str, object] = {
            "mas__policies": {"a": {}, "b": {}},
            "mas__agents": {"solver": {"policy": "a"}, "verifier": {"policy": "b"}},
        }
        return make(**{**team, **settings})

    return two


@pytest.fixture(scope="session")
def tags() -> Callable[..., RowTags]:
    """Make tags of a row with defaults. A test passes only the tags that matter to it."""

    def make(agent: str = "a", **changes: Any) -> RowTags:
        return replace(
            RowTags(
                prompt_len=10,
                response_len=4,
                global_steps=1,
                min_global_steps=0,
                max_global_steps=0,
                policy="main",
                agent=agent,
                role=agent,
                source="letters",
                instance=0,
                turn=0,
                branch=0,
                session=0,
                trainable=True,
                committed=True,
                malformed=False,
                team_reward=0.0,
                local_reward=0.0,
                penalty=0.0,
                observation=0,
                temperature=1.0,
            ),
            **changes,
        )

    return make
