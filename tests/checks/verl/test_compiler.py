from __future__ import annotations

import pytest

from verl_mas.checks.verl.compiler import check_compiler

RAW, SAMPLER = {"actor_rollout_ref__rollout__logprobs_mode": "raw_logprobs"}, "VLLM_USE_FLASHINFER_SAMPLER"


@pytest.mark.parametrize(
    ("engine", "capability", "settings", "sampler", "compiled"),
    [
        ("vllm", (9, 0), {}, None, None),
        ("vllm", (10, 0), {}, None, "FlashInfer's attention"),
        ("vllm", (9, 0), RAW, None, "FlashInfer's sampler"),
        ("vllm", (9, 0), RAW, "0", None),
        ("sglang", (9, 0), {}, None, "SGLang's kernels"),
        ("sglang", None, {}, None, None),
    ],
)
def test_nvcc_is_asked_for_by_what_an_engine_compiles(
    monkeypatch, make, tmp_path, engine, capability, settings, sampler, compiled
):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if sampler:
        monkeypatch.setenv(SAMPLER, sampler)
    config = make(actor_rollout_ref__rollout__name=engine, trainer__device="cuda", **settings)
    rules = [error.rule for error in check_compiler(config)]
    assert rules == [] if compiled is None else [compiled in rule for rule in rules] == [True]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(0o755)
    assert list(check_compiler(config)) == []
