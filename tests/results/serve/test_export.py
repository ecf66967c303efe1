"""`verl-mas export` of checkpoints that the tests make."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import output_of
from peft import PeftModel
from saved_policies import adapted, finish, save_adapter, save_lora, save_shards, save_whole
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mas.config.schema import AgentSpec, RemoteSpec
from verl_mas.results.serve.model import read_weights
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.trainer.checkpoint import BASES, fingerprint
from verl_mas.trainer.policies import weight_folder
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow, read_team

IDS = torch.arange(40)[None] + 30
AS_IT_WAS = {"folder": None}  # A policy with its start weights


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("base") / "model", hidden=32, layers=2, initial=0.1)


class Exports:
    """A checkpoint and its export."""

    def __init__(self, base: Path, root: Path, capsys: pytest.CaptureFixture[str]):
        self.base, self.folder, self.out, self._capsys = base, root / "run" / "global_step_3", root / "out", capsys

    def complete(self, run: dict[str, object] | None = None, **policies: dict[str, object]) -> Path:
        """Complete the checkpoint with a team of these policies. The values of a policy replace its defaults."""
        own = {"model": str(self.base)}
        made = {name: TeamPolicy(**own | {"folder": name} | values) for name, values in policies.items()}
        agents = {f"{name}_agent": AgentSpec(policy=name) for name in made if name != "base"}
        return finish(self.folder, TeamFile(FORMAT, TeamWorkflow("W"), agents, made), run)

    def export(self, *options: object, of: Path | None = None, to: Path | None = None, code: int = 0) -> str:
        words = ["export", of or self.folder, "--out", to or self.out, *options]
        return output_of(self._capsys, *words, code=code)

    def refused(self, *options: object, **where: Path) -> str:
        message = self.export(*options, **where, code=1)
        assert "rule:" in message and "fix:" in message
        return message


@pytest.fixture
def run(base, tmp_path, capsys) -> Exports:
    return Exports(base, tmp_path, capsys)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def loaded(folder: Path, **kwargs):
    return AutoModelForCausalLM.from_pretrained(folder, **kwargs)


def with_adapter(base: Path, folder: Path) -> torch.Tensor:
    return logits(PeftModel.from_pretrained(loaded(base), str(folder)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("workers", "replicas", "tied", "dtype"),
    [(3, 1, False, "float32"), (2, 2, True, "float32"), (1, 1, True, "bfloat16")],
)
def test_a_trained_policy_is_a_hugging_face_model_in_the_precision_of_its_engine(
    base, run, tmp_path, workers, replicas, tied, dtype
):
    if not tied:
        base = tiny_model(tmp_path / "untied", hidden=32, layers=1)
        model = loaded(base, tie_word_embeddings=False)
        torch.nn.init.normal_(model.lm_head.weight)
        model.save_pretrained(base)
    expected = save_whole(base, run.folder / "main", 0.25, workers, replicas)
    run.complete(main={"model": str(base), "dtype": dtype})
    printed, model = run.export(), loaded(run.out / "main")
    found = model.state_dict()
    precision = getattr(torch, dtype)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].to(precision)) for name in expected)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    tokenizer, own = (AutoTokenizer.from_pretrained(path) for path in (base, run.out / "main"))
    assert own.chat_template == tokenizer.chat_template
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert f"main: {model.num_parameters():,} parameters in {dtype}" in printed
    assert names(run.out) == ["README.md", "main", "team.yaml"]


@pytest.fixture
def adapters(base, run):
    """Save two adapters on one base, and return the models with them."""
    made = {name: adapted(base, seed, rank) for seed, (name, rank) in enumerate({"a": 4, "b": 2}.items())}
    for name, model in made.items():
        save_adapter(model, run.folder / name)
    (run.folder / "base").mkdir()
    run.complete(a={"adapter_of": "base"}, b={"adapter_of": "base"}, base=AS_IT_WAS)
    return made


def test_adapters_are_peft_folders_with_the_tokenizer_and_the_name_of_their_base(base, run, adapters):
    printed = run.export()
    for name, trained in adapters.items():
        assert torch.equal(with_adapter(base, run.out / name), logits(trained))
        assert json.loads((run.out / name / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
        assert AutoTokenizer.from_pretrained(run.out / name).chat_template
    assert not torch.equal(*map(logits, adapters.values()))
    assert f"b: an adapter of rank 2 on {base}" in printed
    policies = read_team(run.out).policies
    assert policies["a"] == TeamPolicy(model=str(base), folder="a", adapter_of="base")
    assert policies["base"] == TeamPolicy(model=str(base))


def differences(text: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if "merged into" in line]


def test_merged_adapters_are_models_of_their_own_whose_log_probs_are_the_adapters(run, adapters):
    assert len(differences(run.export("--merge"))) == 2
    for name, trained in adapters.items():
        found = logits(loaded(run.out / name)).log_softmax(-1)
        torch.testing.assert_close(found, logits(trained).log_softmax(-1), atol=1e-5, rtol=0)
        assert not (run.out / name / "adapter_config.json").exists()
    policies = read_team(run.out).policies
    assert set(policies) == {"a", "b"} and policies["a"].adapter_of is None


def test_what_merging_into_a_coarse_base_changes_is_printed(base, run, tmp_path):
    coarse = tmp_path / "coarse"
    loaded(base).bfloat16().save_pretrained(coarse)
    AutoTokenizer.from_pretrained(base).save_pretrained(coarse)
    save_adapter(adapted(coarse, 0).float(), run.folder / "a")
    run.complete(a={"model": str(coarse)})
    [printed] = differences(run.export("--merge"))
    assert loaded(run.out / "a").dtype == torch.bfloat16 and 1e-4 < printed < 1


def test_a_policy_that_verl_trained_with_lora_is_exported_as_an_adapter_too(base, run):
    trained = adapted(base, 0)
    save_lora(trained, base, run.folder / "main")
    run.complete(main={"dtype": "bfloat16"})
    run.export()
    assert torch.equal(with_adapter(base, run.out / "main"), logits(trained))


def test_a_snapshot_is_exported_and_one_of_the_start_is_its_model(base, run):
    save_whole(base, run.folder / "main", 0.25)
    earlier = loaded(base)
    with torch.no_grad():
        earlier.model.norm.weight += 1
    weight_folder.write(run.folder / "past", earlier.state_dict().items(), 2, 10_000)
    (run.folder / "start").mkdir()
    weight_folder.record(run.folder / "start", 0)
    run.complete(main={}, past={"snapshot_of": "main"}, start={"snapshot_of": "main"})
    run.export()
    assert torch.equal(logits(loaded(run.out / "past")), logits(earlier))
    assert read_team(run.out).policies["start"].folder is None and not (run.out / "start").exists()


@pytest.fixture
def small(base, run):
    """A team of a trained policy, a frozen policy and an endpoint."""
    save_whole(base, run.folder / "main", 0.25)
    remote = {"model": None, "remote": RemoteSpec("http://host/v1", "m", "THE_KEY")}
    return run.complete(main={}, frozen=AS_IT_WAS, remote=AS_IT_WAS | remote)


def test_the_team_names_every_policy_and_its_step_and_nothing_of_it_is_overwritten_without_force(base, run, small):
    printed = json.loads(run.export("--json", of=small.parent))  # the run's folder stands for its latest checkpoint
    assert printed["step"] == 3 and printed["written"][-1] == f"{run.out}/team.yaml"
    found = read_team(run.out)
    assert found == replace(read_team(small), step=3)
    assert found.policies["frozen"] == TeamPolicy(model=str(base))
    assert found.policies["remote"].remote.api_key_env == "THE_KEY"
    (run.out / "main" / "mine").touch()
    (run.out / "other").mkdir()
    assert f"{run.out}/main, {run.out}/team.yaml, {run.out}/README.md exist\n" in run.refused()
    assert (run.out / "main" / "mine").exists()
    run.export("--force")
    assert (run.out / "main" / "config.json").exists() and not (run.out / "main" / "mine").exists()
    assert names(run.out) == ["README.md", "main", "other", "team.yaml"]


def test_force_replaces_nothing_that_no_export_wrote(base, run, small):
    (run.out / "main").mkdir(parents=True)
    run.export("--force")  # an empty folder
    shutil.rmtree(run.out / "main")
    (run.out / "main").mkdir()
    (run.out / "main" / "thesis.txt").touch()
    assert f"{run.out}/main: not written by an export" in run.refused("--force")
    shutil.rmtree(run.out / "main")
    (run.out / "main").symlink_to(base)
    assert f"{run.out}/main: not written by an export" in run.refused("--force")
    later = run.folder.with_name("global_step_4")
    shutil.copytree(small, later)
    for target in (small, later, later / "main"):
        assert f"is in the checkpoint {target if target == small else later}" in run.refused("--force", to=target)
    save_adapter(adapted(base, 0), run.folder / "model")
    run.complete(model={})
    assert "neither a model nor a checkpoint" in run.refused("--force", to=base.parent)
    assert (base / "config.json").exists()


def test_an_export_that_is_interrupted_leaves_no_team_of_policies_of_different_steps(run, adapters):
    run.export()
    (run.folder / "b" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    finish(run.folder, read_team(run.folder))
    assert f"{run.folder}/b/adapter_model.safetensors cannot be read" in run.refused("--force")
    assert names(run.out) == ["README.md", "a", "b"]


def test_what_is_no_checkpoint_or_damaged_is_refused_before_anything_is_written(run, small, tmp_path):
    assert "no policy is one" in run.refused("--merge")
    (small.parent / "metrics.jsonl").write_text("no metrics\n")
    assert "metrics.jsonl, line 1" in run.refused()
    assert f"give one of {small}" in run.refused(of=small.parent / "global_step_4")
    assert "is not there" in run.refused(of=tmp_path / "none")
    assert "is no folder" in run.refused(of=small / "run.json")
    assert "has no complete checkpoint" in run.refused(of=tmp_path)
    next((small / "main").glob("model_*")).unlink()
    assert "is not complete: main/model_world_size_1_rank_0.pt is missing" in run.refused() and not run.out.exists()
    assert "is not complete: main/model_world_size_1_rank_0.pt is missing" in run.refused(of=small.parent)


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_are_joined_along_the_dimension_that_divided_them(tmp_path, dim):
    state = {"weight": torch.arange(24.0).reshape(4, 6)}
    save_shards(state, tmp_path, workers=2, dim=dim)
    assert torch.equal(read_weights(tmp_path, None)["weight"], state["weight"])


def test_files_of_a_worker_that_are_missing_or_of_another_model_or_have_code_are_refused(base, run, tmp_path):
    class Payload:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    state = save_whole(base, run.folder / "main", 0.25, workers=2)
    (run.folder / "main" / "model_world_size_2_rank_1.pt").unlink()
    run.complete(main={})
    assert "rank_1.pt is missing" in run.refused() and not any(run.out.iterdir())
    del state["model.norm.weight"]
    save_shards({**state, "strange": torch.zeros(2)}, run.folder / "main")
    run.complete(main={})
    assert "no model.norm.weight, strange" in run.refused() and not any(run.out.iterdir())
    torch.save({"weight": Payload()}, run.folder / "main" / "model_world_size_1_rank_0.pt")
    run.complete(main={})
    assert "rank_0.pt cannot be read: UnpicklingError" in run.refused() and not (tmp_path / "ran").exists()


def test_an_adapter_is_merged_into_its_own_base_only(base, run, tmp_path):
    save_adapter(adapted(base, 0), run.folder / "a")
    tiny_model(tmp_path / "other", hidden=32, layers=1)
    tiny_model(tmp_path / "wider", hidden=64, layers=2)
    for name, says in (
        ("other", "has no module for base_model.model.model.layers.1."),
        ("wider", "size mismatch"),
        ("gone", f"{tmp_path}/gone cannot be loaded"),
    ):
        run.complete(a={"model": str(tmp_path / name)})
        assert says in run.refused("--merge")


def test_an_adapter_whose_base_has_other_weights_by_now_is_refused(base, run, adapters, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(base, model)
    bases = {BASES: {"base": {"model": "model", "fingerprint": fingerprint(model)}}}
    run.complete(bases, a={"model": str(model), "adapter_of": "base"}, base=AS_IT_WAS | {"model": str(model)})
    run.export()
    tiny_model(model, hidden=32, layers=2, initial=0.1, seed=1)
    assert "has other weights than the base" in run.refused("--force")
    (model / "config.json").write_text("{")
    assert "model cannot be loaded" in run.refused("--force")
    shutil.rmtree(model)
    assert "model cannot be loaded" in run.refused("--force"), "its tokenizer is needed"


def test_an_adapter_on_tied_weights_is_not_merged(base, run):
    """A merge would also change the embedding."""
    torch.manual_seed(0)
    made = adapted(base, 0, target_modules=["q_proj", "lm_head"])
    save_adapter(made, run.folder / "a")
    run.complete(a={})
    assert "is on lm_head, whose weights another layer has" in run.refused("--merge")
    run.export()
    assert torch.equal(with_adapter(base, run.out / "a"), logits(made))


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("a/adapter_config.json", "{}", "it has no r, peft_type"),
        ("main/fsdp_config.json", "[]", "it holds no JSON object"),
        ("past/00000.safetensors", "x" * 20, "SafetensorError"),
    ],
)
def test_a_damaged_file_is_named(base, run, file, content, says):
    save_adapter(adapted(base, 0), run.folder / "a")
    save_whole(base, run.folder / "main", 0.25)
    weight_folder.write(run.folder / "past", loaded(base).state_dict().items(), 2, 10**9)
    (run.folder / file).write_text(content)
    run.complete(a={}, main={}, past={"snapshot_of": "main"})
    policy = file.partition("/")[0]
    assert re.search(rf"{run.folder}/{policy}.* cannot be read: .*{says}", run.refused())
    assert not (run.out / policy).exists()


def test_an_adapter_that_started_with_more_than_pairs_is_refused(base, run, tmp_path):
    """verl's files have these tensors under other names, so the export would lose them."""
    save_lora(adapted(base, 0), base, run.folder / "main")
    run.complete(main={"start_adapter": str(tmp_path)})
    for found in ({"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}):
        (tmp_path / "adapter_config.json").write_text(json.dumps(found))
        assert f"has {next(iter(found))}=" in run.refused()
