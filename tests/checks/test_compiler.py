import pytest

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.machine import nvcc
from verl_mas.checks.rules import every_rule

RAW, SAMPLER = {"actor_rollout_ref__rollout__logprobs_mode": "raw_logprobs"}, "VLLM_USE_FLASHINFER_SAMPLER"


@pytest.mark.parametrize(
    ("engine", "capability", "settings", "sampler", "kernels"),
    [
        ("vllm", (9, 0), {}, None, ""),
        ("vllm", (10, 0), {}, None, "FlashInfer's attention"),
        ("vllm", (9, 0), RAW, None, "FlashInfer's sampler"),
        ("vllm", (9, 0), RAW, "0", ""),
        ("sglang", (9, 0), {}, None, "SGLang's kernels"),
        ("sglang", None, {}, None, ""),
    ],
)
def test_what_an_engine_compiles_depends_on_its_settings_and_the_gpu(
    monkeypatch, make, engine, capability, settings, sampler, kernels
):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    if sampler:
        monkeypatch.setenv(SAMPLER, sampler)
    monkeypatch.setattr("verl_mas.checks.rules.engines.nvcc", lambda: None)
    run = ExaminedRun.of(make(actor_rollout_ref__rollout__name=engine, trainer__device="cuda", **settings))
    said = "".join(problem.rule for problem in every_rule()["compiler_installed"].problems(run))
    assert kernels in said if kernels else said == ""


def test_nvcc_is_looked_for_in_the_folder_that_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert nvcc() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(0o755)
    assert nvcc() == str(tmp_path / "bin/nvcc")
