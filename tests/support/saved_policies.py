"""Make checkpoints as a run saves them, but without a run: files of verl's training workers, and PEFT folders."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from peft import LoraConfig, PeftModel, get_peft_model
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from verl_mas.config.sampling import Sampling
from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.results.serve.model import copy_tokenizer
from verl_mas.run_folder.checkpoints import RUN_FILE, complete
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow


@contextmanager
def _rank(rank: int, workers: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=workers, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def save_shards(
    state: Mapping[str, torch.Tensor], folder: Path, workers: int = 1, replicas: int = 1, dim: int = 0
) -> None:
    """Save weights as FSDP2 does: each tensor is split along one dimension over the workers of each replica."""
    folder.mkdir(parents=True, exist_ok=True)
    every = workers * replicas
    for rank in range(every):
        with _rank(rank, every):
            grid = torch.arange(every).reshape(replicas, workers)
            mesh = DeviceMesh("cpu", grid if replicas > 1 else grid[0])
            parts = {name: _part(tensor.detach(), mesh, rank % workers, dim) for name, tensor in state.items()}
            torch.save(parts, folder / f"model_world_size_{every}_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": every}))


def _part(tensor: torch.Tensor, mesh: DeviceMesh, number: int, dim: int) -> torch.Tensor:
    chunks = tensor.chunk(mesh.size(-1), dim)
    local = chunks[number].clone() if number < len(chunks) else tensor.narrow(dim, 0, 0).clone()
    placements = [Replicate(), Shard(dim)] if mesh.ndim > 1 else [Shard(dim)]
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())


def save_whole(
    model: Path, folder: Path, change: float, workers: int = 1, replicas: int = 1
) -> dict[str, torch.Tensor]:
    """Save a policy that was trained from `model`: add `change` to every weight. Return the weights."""
    trained = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(change)
    save_shards(trained.state_dict(), folder, workers, replicas)
    _save_beside(trained, model, folder)
    return trained.state_dict()


def adapted(model: Path, seed: int, rank: int = 4, target_modules: str | list[str] = "all-linear") -> PeftModel:
    """Make a model with an adapter that changes its replies."""
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=target_modules, task_type="CAUSAL_LM")
    made = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return cast(PeftModel, made.eval())


def save_lora(made: PeftModel, model: Path, folder: Path) -> None:
    """Save a policy with LoRA as verl does: the whole model, and part of the configuration."""
    save_shards(made.state_dict(), folder, workers=2)
    _save_beside(cast(PreTrainedModel, made.get_base_model()), model, folder)
    config = cast(LoraConfig, made.peft_config["default"])
    meta = {"r": config.r, "lora_alpha": config.lora_alpha, "task_type": "CAUSAL_LM"}
    (folder / "lora_train_meta.json").write_text(json.dumps(meta))


def save_adapter(made: PeftModel, folder: Path) -> None:
    made.save_pretrained(str(folder), save_embedding_layers=False)


def _save_beside(trained: PreTrainedModel, model: Path, folder: Path) -> None:
    trained.config.save_pretrained(folder / "huggingface")
    trained.generation_config.save_pretrained(folder / "huggingface")
    AutoTokenizer.from_pretrained(model).save_pretrained(folder / "huggingface")


def finish(folder: Path, team: TeamFile | None, run: Mapping[str, object] | None = None) -> Path:
    """Mark a checkpoint as complete, even if it is marked already. `run` is the identity of its run."""
    if team is not None:
        team.write(folder)
    (folder / RUN_FILE).unlink(missing_ok=True)
    complete(folder, run or {})
    return folder


def exported_pair(root: Path, *, hidden: int = 32, score: str = "math") -> Path:
    """Write a team as `verl-mas export` does. Its two policies are adapters on the base `root/model`."""
    base, out = tiny_model(root / "model", hidden=hidden, layers=1, initial=0.1), root / "team"
    _write_letters(base)
    for seed, name in enumerate(("a", "b")):
        save_adapter(adapted(base, seed, rank=2 + 2 * seed), out / name)
        copy_tokenizer(base, out / name)
    sampling: Sampling = {"temperature": 1.0, "max_tokens": 12}
    agents = {
        agent: AgentSpec(policy=policy, sampling=sampling, validation_sampling=sampling)
        for agent, policy in (("solver", "a"), ("verifier", "b"))
    }
    adapter = TeamPolicy(model=str(base), adapter_of="base", dtype="float32", prompt_length=512, response_length=32)
    policies = {name: replace(adapter, folder=name) for name in ("a", "b")} | {"base": TeamPolicy(model=str(base))}
    workflow = TeamWorkflow("solver_verifier", args={"score": score})
    TeamFile(FORMAT, workflow, agents, policies, step=3, faults=FaultSpec(retries=0)).write(out)
    return out


def _write_letters(folder: Path) -> None:
    """Change a model so that it almost always samples printable ASCII, which every engine decodes alike."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    words = tokenizer.batch_decode([[token] for token in range(model.config.vocab_size)])
    special = set(tokenizer.all_special_ids)
    other = [
        token for token, word in enumerate(words) if token in special or not (word.isascii() and word.isprintable())
    ]
    with torch.no_grad():
        # These tokens get the logit 0.
        model.lm_head.weight[other] = 0.0
    model.save_pretrained(folder)
