import json

import pytest
from omegaconf import OmegaConf

from verl_mas.checks import machine, served
from verl_mas.checks.run import exit_on_error
from verl_mas.errors import ConfigError


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def test_a_whole_model_folder_and_a_name_on_the_hub_pass(model):
    served.check_model(str(model))
    served.check_model("Qwen/Qwen3-4B")
    served.check_model("hdfs://cluster/model")


@pytest.mark.parametrize("path", ["/nowhere/model", "./nowhere", "nowhere", "a/b/c"])
def test_a_model_that_is_not_there_is_refused(path):
    with pytest.raises(ConfigError, match="fix:  give an existing folder"):
        served.check_model(path)


@pytest.mark.parametrize(
    ("missing", "said"), [("config.json", "no config.json"), ("tokenizer.json", "no chat template")]
)
def test_an_incomplete_model_folder_is_refused(model, missing, said):
    (model / missing).unlink()
    (model / "tokenizer_config.json").unlink()
    if missing == "tokenizer.json":
        (model / "tokenizer.model").touch()
    with pytest.raises(ConfigError, match=said):
        served.check_model(str(model))


def test_a_model_without_a_tokenizer_is_refused(model):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError, match="tokenizer"):
        served.check_model(str(model))


def test_an_unknown_engine_is_refused_with_the_nearest_name():
    served.check_engine("transformers")
    with pytest.raises(ConfigError, match="did you mean 'sglang'"):
        served.check_engine("sglangg")


def test_an_unknown_platform_is_refused(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "gpu")
    with pytest.raises(ConfigError, match="VERL_PLATFORM=gpu"):
        machine.check_platform()


def config(*, gpus: int, ray_gpus: int, ray_cpus: int, units: int = 1, address: str | None = None):
    return OmegaConf.create(
        {
            "trainer": {"nnodes": 1, "n_gpus_per_node": gpus},
            "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": units}}},
            "ray_kwargs": {"ray_init": {"num_gpus": ray_gpus, "num_cpus": ray_cpus, "address": address}},
        }
    )


def test_resources_that_suffice_pass(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    machine.check_resources(config(gpus=2, ray_gpus=2, ray_cpus=9))


def test_too_few_gpus_and_too_few_cpus_are_refused(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="asks for 2 GPUs, Ray will have 1"):
        machine.check_resources(config(gpus=2, ray_gpus=1, ray_cpus=64))
    with pytest.raises(ConfigError, match="num_cpus=13"):
        machine.check_resources(config(gpus=1, ray_gpus=1, ray_cpus=12, units=8))


def test_a_running_cluster_is_left_to_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    machine.check_resources(config(gpus=64, ray_gpus=0, ray_cpus=1, address="auto"))


def test_a_refusal_stops_the_run():
    with pytest.raises(SystemExit, match="fix:  give an existing folder"), exit_on_error():
        served.check_model("/nowhere")
