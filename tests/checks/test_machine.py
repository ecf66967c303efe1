import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from verl_mas.checks import machine
from verl_mas.checks.examined import ExaminedRun
from verl_mas.engines.facts import facts_of

RAY = "ray_kwargs__ray_init__"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda folder: None)


@pytest.mark.parametrize(
    ("found_by", "address"),
    [(None, "auto"), ("ray.is_initialized", None), ("ray._private.utils.read_ray_address", None)],
)
def test_a_running_cluster_is_left_to_ray(monkeypatch, make, found_by, address):
    if found_by:
        monkeypatch.setattr(found_by, lambda *folder: "10.0.0.1:6379")
    joining = {f"{RAY}num_gpus": 0, f"{RAY}num_cpus": 1, f"{RAY}address": address}
    assert list(machine.check_resources(ExaminedRun.of(make(trainer__n_gpus_per_node=64, **joining)))) == []


@pytest.mark.parametrize("given", ["http//head:6379", "head", "ray://head"])
def test_what_is_no_address_of_a_cluster_is_said(monkeypatch, make, given):
    monkeypatch.setenv("RAY_ADDRESS", given)
    problem, *_ = machine.check_cluster(make())
    assert "no host:port" in str(problem)


def test_cpus_are_counted_as_ray_does_and_npus_as_verl_does(monkeypatch, make):
    monkeypatch.setattr("ray._private.utils.get_num_cpus", lambda **_: 3)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    have = machine.available(make(**{f"{RAY}num_gpus": None, f"{RAY}num_cpus": None}))
    assert (have.gpus, have.cpus) == (5, 3)
    monkeypatch.setattr("verl.plugin.platform.get_platform", lambda: SimpleNamespace(device_count=lambda: 8))
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(__spec__=ModuleSpec("torch_npu", None)))
    assert machine.devices_here() == 8
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert machine.devices_here() == 5


def test_another_version_of_verl_is_refused(monkeypatch):
    assert list(machine.check_versions()) == []
    monkeypatch.setattr(machine, "requirements", lambda package: [machine.Requirement("verl>=9")])
    (error,) = machine.check_versions()
    assert error.fix == "pip install 'verl>=9'"


def test_a_slurm_step_without_gpus_is_refused_with_the_options_of_srun(monkeypatch, make):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    run = ExaminedRun.of(make(trainer__device="cuda", trainer__n_gpus_per_node=8))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    (error,) = machine.check_resources(run)
    assert error.value == "this Slurm step has no GPU" and "srun --gpus-per-node=8 --cpus-per-task" in error.fix
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert all("Slurm" not in problem.value for problem in machine.check_resources(run))


@pytest.mark.parametrize(
    ("engine", "capability", "mode", "sampler", "kernels"),
    [
        ("vllm", 9, "processed_logprobs", "1", ""),
        ("vllm", 10, "processed_logprobs", "1", "FlashInfer's attention, which vLLM chooses on this GPU,"),
        ("vllm", 9, "raw_logprobs", None, "FlashInfer's sampler"),
        ("vllm", 9, "raw_logprobs", "0", ""),
        ("sglang", 9, "processed_logprobs", "1", "SGLang's kernels"),
    ],
)
def test_what_an_engine_compiles_depends_on_its_settings_and_the_gpu(
    monkeypatch, engine, capability, mode, sampler, kernels
):
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    if sampler:
        monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", sampler)
    rollout = OmegaConf.create({"logprobs_mode": mode, "engine_kwargs": {}})
    assert facts_of(engine).compiles(rollout, (capability, 0)) == kernels


def test_gpus_that_are_counted_are_visible_to_ray(monkeypatch, make):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for count, values in ((2, []), (3, ["CUDA_VISIBLE_DEVICES=0,1 with ray_kwargs.ray_init.num_gpus=3"])):
        run = ExaminedRun.of(make(**{f"{RAY}num_gpus": count}))
        assert [problem.value for problem in machine.check_resources(run)] == values


def test_nvcc_is_looked_for_in_the_folder_that_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert machine.nvcc() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(0o755)
    assert machine.nvcc() == str(tmp_path / "bin/nvcc")
