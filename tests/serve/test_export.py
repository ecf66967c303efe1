"""`verl-mas export`, on checkpoints that are made here."""

from __future__ import annotations

import json
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
from verl_mas.serve.adapter import log_probs, prompt_ids
from verl_mas.serve.model import read_weights
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.trainer.adapter_identity import BASES, fingerprint
from verl_mas.trainer.policies import weight_folder
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow, read_team

IDS = torch.arange(40)[None] + 30
# A policy that is what it was trained from.
AS_IT_WAS = {"folder": None}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("base") / "model", hidden=32, layers=2, initial=0.1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "global_step_3"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def complete(base, folder):
    """Completes the checkpoint of a team with these policies, by what each has beside the base as its model."""

    def complete(run: dict[str, object] | None = None, **policies: dict[str, object]) -> Path:
        made = {name: TeamPolicy(**{"model": str(base), "folder": name} | own) for name, own in policies.items()}
        agents = {f"{name}_agent": AgentSpec(policy=name) for name in made if name != "base"}
        return finish(folder, TeamFile(FORMAT, TeamWorkflow("W"), agents, made), run)

    return complete


@pytest.fixture
def export(capsys, folder, out):
    """What is printed by an export, of the checkpoint unless it is of another one."""

    def export(*options: object, of: Path = folder, to: Path = out, code: int = 0) -> str:
        return output_of(capsys, "export", of, "--out", to, *options, code=code)

    return export


@pytest.fixture
def refused(export):
    def refused(*options: object, **where: Path) -> str:
        message = export(*options, **where, code=1)
        assert "rule:" in message and "fix:" in message
        return message

    return refused


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def loaded(folder: Path, **kwargs):
    return AutoModelForCausalLM.from_pretrained(folder, **kwargs)


def with_adapter(base: Path, folder: Path) -> torch.Tensor:
    return logits(PeftModel.from_pretrained(loaded(base), str(folder)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("workers", "replicas", "tied"), [(3, 1, False), (2, 2, True)])
def test_a_trained_policy_is_a_hugging_face_model_with_exactly_its_weights(
    base, folder, out, tmp_path, workers, replicas, tied, complete, export
):
    if not tied:
        base = tiny_model(tmp_path / "untied", hidden=32, layers=1)
        model = loaded(base, tie_word_embeddings=False)
        torch.nn.init.normal_(model.lm_head.weight)
        model.save_pretrained(base)
    expected = save_whole(base, folder / "main", 0.25, workers, replicas)
    complete(main={"model": str(base)})
    printed, model = export(), loaded(out / "main")
    found = model.state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    tokenizer, own = (AutoTokenizer.from_pretrained(path) for path in (base, out / "main"))
    assert own.chat_template == tokenizer.chat_template
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert f"main: {model.num_parameters():,} parameters in float32" in printed
    assert names(out) == ["README.md", "main", "team.yaml"]


def test_a_policy_has_the_precision_of_its_engine_and_is_exported_alone_without_the_team(
    base, folder, out, complete, export
):
    expected = save_whole(base, folder / "main", 0.25)
    complete(main={"dtype": "bfloat16"})
    export("--policy", "main")
    found = loaded(out / "main").state_dict()
    assert all(torch.equal(found[name], expected[name].bfloat16()) for name in expected)
    assert names(out) == ["main"]


@pytest.fixture
def adapters(base, folder, complete):
    """Two adapters on one base, and the models with them."""
    made = {name: adapted(base, seed, rank) for seed, (name, rank) in enumerate({"a": 4, "b": 2}.items())}
    for name, model in made.items():
        save_adapter(model, folder / name)
    (folder / "base").mkdir()
    complete(a={"adapter_of": "base"}, b={"adapter_of": "base"}, base=AS_IT_WAS)
    return made


def test_adapters_are_peft_folders_with_the_tokenizer_and_the_name_of_their_base(base, out, adapters, export):
    printed = export()
    for name, trained in adapters.items():
        assert torch.equal(with_adapter(base, out / name), logits(trained))
        assert json.loads((out / name / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
        assert AutoTokenizer.from_pretrained(out / name).chat_template
    assert not torch.equal(*map(logits, adapters.values()))
    assert f"b: an adapter of rank 2 on {base}" in printed
    policies = read_team(out).policies
    assert policies["a"] == TeamPolicy(model=str(base), folder="a", adapter_of="base")
    assert policies["base"] == TeamPolicy(model=str(base))


def differences(text: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if "merged into" in line]


def test_merged_adapters_are_models_of_their_own_whose_log_probs_are_the_adapters(out, adapters, export):
    assert len(differences(export("--merge"))) == 2
    for name, trained in adapters.items():
        found = logits(loaded(out / name)).log_softmax(-1)
        torch.testing.assert_close(found, logits(trained).log_softmax(-1), atol=1e-5, rtol=0)
        assert not (out / name / "adapter_config.json").exists()
    policies = read_team(out).policies
    assert set(policies) == {"a", "b"} and policies["a"].adapter_of is None


def test_what_merging_into_a_coarse_base_changes_is_printed(base, folder, out, tmp_path, complete, export):
    coarse = tmp_path / "coarse"
    loaded(base).bfloat16().save_pretrained(coarse)
    AutoTokenizer.from_pretrained(base).save_pretrained(coarse)
    fine = adapted(coarse, 0).float()
    save_adapter(fine, folder / "a")
    complete(a={"model": str(coarse)})
    [printed] = differences(export("--merge"))
    assert loaded(out / "a").dtype == torch.bfloat16 and 1e-4 < printed < 1
    ids = prompt_ids(AutoTokenizer.from_pretrained(out / "a"))
    again = log_probs(loaded(out / "a", dtype=torch.float32), ids) - log_probs(fine, ids)
    assert float(again.abs().max()) == pytest.approx(printed, rel=0.01)


def test_a_policy_that_verl_trained_with_lora_is_exported_as_an_adapter_too(base, folder, out, complete, export):
    trained = adapted(base, 0)
    save_lora(trained, base, folder / "main")
    complete(main={"dtype": "bfloat16"})
    export()
    assert torch.equal(with_adapter(base, out / "main"), logits(trained))


def test_a_snapshot_is_exported_and_one_of_the_start_is_its_model(base, folder, out, complete, export):
    save_whole(base, folder / "main", 0.25)
    earlier = loaded(base)
    with torch.no_grad():
        earlier.model.norm.weight += 1
    weight_folder.write(folder / "past", earlier.state_dict().items(), 2, 10_000)
    (folder / "start").mkdir()
    weight_folder.record(folder / "start", 0)
    complete(main={}, past={"snapshot_of": "main"}, start={"snapshot_of": "main"})
    export()
    assert torch.equal(logits(loaded(out / "past")), logits(earlier))
    assert read_team(out).policies["start"].folder is None and not (out / "start").exists()


@pytest.fixture
def small(base, folder, complete):
    """A team of a trained policy, a frozen one and an endpoint."""
    save_whole(base, folder / "main", 0.25)
    remote = {"model": None, "remote": RemoteSpec("http://host/v1", "m", "THE_KEY")}
    return complete(main={}, frozen=AS_IT_WAS, remote=AS_IT_WAS | remote)


def test_the_team_names_every_policy_and_its_step_and_nothing_of_it_is_overwritten_without_force(
    small, base, out, export, refused
):
    printed = json.loads(export("--json", of=small.parent))  # the run's folder stands for its latest checkpoint
    assert printed["step"] == 3 and printed["written"][-1] == f"{out}/team.yaml"
    found = read_team(out)
    assert found == replace(read_team(small), step=3)
    assert found.policies["frozen"] == TeamPolicy(model=str(base))
    assert found.policies["remote"].remote.api_key_env == "THE_KEY"
    (out / "main" / "mine").touch()
    (out / "other").mkdir()
    assert f"{out}/main, {out}/team.yaml, {out}/README.md exist\n" in refused()
    assert f"{out}/team.yaml describes the policies of an export" in refused("--policy", "main", "--force")
    assert (out / "main" / "mine").exists()
    export("--force")
    assert (out / "main" / "config.json").exists() and not (out / "main" / "mine").exists()
    assert names(out) == ["README.md", "main", "other", "team.yaml"]


def test_force_replaces_nothing_that_no_export_wrote(small, folder, base, out, complete, export, refused):
    (out / "main").mkdir(parents=True)
    export("--force", "--policy", "main")  # an empty folder
    shutil.rmtree(out / "main")
    (out / "main").mkdir()
    (out / "main" / "thesis.txt").touch()
    assert f"{out}/main: not written by an export" in refused("--force")
    shutil.rmtree(out / "main")
    (out / "main").symlink_to(base)
    assert f"{out}/main: not written by an export" in refused("--force")
    later = folder.with_name("global_step_4")
    shutil.copytree(small, later)
    for target in (small, later, later / "main"):
        assert f"is in the checkpoint {target if target == small else later}" in refused("--force", to=target)
    save_adapter(adapted(base, 0), folder / "model")
    complete(model={})
    assert "neither a model nor a checkpoint" in refused("--force", to=base.parent)
    assert (base / "config.json").exists()


def test_an_export_that_is_interrupted_leaves_no_team_of_policies_of_different_steps(
    folder, out, adapters, export, refused
):
    export()
    (folder / "b" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    finish(folder, read_team(folder))
    assert f"{folder}/b/adapter_model.safetensors cannot be read" in refused("--force")
    assert names(out) == ["README.md", "a", "b"]


def test_what_is_no_checkpoint_or_damaged_is_refused_before_anything_is_written(small, out, tmp_path, refused):
    for policy, says in (("mian", "did you mean 'main'"), ("remote", "--policy remote, which is http://host/v1")):
        assert says in refused("--policy", policy)
    (small.parent / "metrics.jsonl").write_text("no metrics\n")
    assert "metrics.jsonl, line 1" in refused()
    assert f"give one of {small}" in refused(of=small.parent / "global_step_4")
    assert "is not there" in refused(of=tmp_path / "none")
    assert "is no folder" in refused(of=small / "run.json")
    assert "has no complete checkpoint" in refused(of=tmp_path)
    next((small / "main").glob("model_*")).unlink()
    assert "is not complete: main/model_world_size_1_rank_0.pt is missing" in refused() and not out.exists()


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_are_joined_along_the_dimension_that_divided_them(tmp_path, dim):
    state = {"weight": torch.arange(24.0).reshape(4, 6)}
    save_shards(state, tmp_path, workers=2, dim=dim)
    assert torch.equal(read_weights(tmp_path, None)["weight"], state["weight"])


def test_files_of_a_worker_that_are_missing_or_of_another_model_or_have_code_are_refused(
    base, folder, out, tmp_path, complete, refused
):
    class Payload:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    state = save_whole(base, folder / "main", 0.25, workers=2)
    (folder / "main" / "model_world_size_2_rank_1.pt").unlink()
    complete(main={})
    assert "rank_1.pt is missing" in refused() and not any(out.iterdir())
    del state["model.norm.weight"]
    save_shards({**state, "strange": torch.zeros(2)}, folder / "main")
    complete(main={})
    assert "no model.norm.weight, strange" in refused() and not any(out.iterdir())
    torch.save({"weight": Payload()}, folder / "main" / "model_world_size_1_rank_0.pt")
    complete(main={})
    assert "rank_0.pt cannot be read: UnpicklingError" in refused() and not (tmp_path / "ran").exists()


def test_an_adapter_is_merged_into_its_own_base_only(base, folder, tmp_path, complete, refused):
    save_adapter(adapted(base, 0), folder / "a")
    tiny_model(tmp_path / "other", hidden=32, layers=1)
    tiny_model(tmp_path / "wider", hidden=64, layers=2)
    for name, says in (
        ("other", "has no module for base_model.model.model.layers.1."),
        ("wider", "size mismatch"),
        ("gone", f"{tmp_path}/gone cannot be loaded"),
    ):
        complete(a={"model": str(tmp_path / name)})
        assert says in refused("--merge")


def test_an_adapter_whose_base_has_other_weights_by_now_is_refused(base, adapters, tmp_path, complete, export, refused):
    model = tmp_path / "model"
    shutil.copytree(base, model)
    bases = {BASES: {"base": {"model": "model", "fingerprint": fingerprint(model)}}}
    complete(bases, a={"model": str(model), "adapter_of": "base"}, base=AS_IT_WAS | {"model": str(model)})
    export()
    tiny_model(model, hidden=32, layers=2, initial=0.1, seed=1)
    assert "has other weights than the base" in refused("--force")
    (model / "config.json").write_text("{")
    assert "model cannot be loaded" in refused("--force")
    shutil.rmtree(model)
    assert "model cannot be loaded" in refused("--force"), "its tokenizer is needed"


def test_an_adapter_on_tied_weights_is_not_merged(base, folder, out, complete, export, refused):
    """It would change the embedding, too."""
    torch.manual_seed(0)
    made = adapted(base, 0, target_modules=["q_proj", "lm_head"])
    save_adapter(made, folder / "a")
    complete(a={})
    assert "is on lm_head, whose weights another layer has" in refused("--merge")
    export()
    assert torch.equal(with_adapter(base, out / "a"), logits(made))


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("a/adapter_model.safetensors", "x" * 20, "SafetensorError"),
        ("a/adapter_config.json", "{}", "it has no r, peft_type"),
        ("main/fsdp_config.json", "[]", "it holds no JSON object"),
        ("lora/lora_train_meta.json", '{"r": 4', "JSONDecodeError"),
        ("past/00000.safetensors", "x" * 20, "SafetensorError"),
    ],
)
def test_a_damaged_file_is_named(base, folder, out, complete, refused, file, content, says):
    policy = file.partition("/")[0]
    match policy:
        case "a":
            save_adapter(adapted(base, 0), folder / "a")
        case "main":
            save_whole(base, folder / "main", 0.25)
        case "lora":
            save_lora(adapted(base, 0), base, folder / "lora")
        case "past":
            weight_folder.write(folder / "past", loaded(base).state_dict().items(), 2, 10**9)
    (folder / file).write_text(content)
    complete(**{policy: {"snapshot_of": "base" if policy == "past" else None}}, base=AS_IT_WAS)
    message = refused()
    assert f"{folder / file} cannot be read" in message or f"{folder / policy} cannot be read" in message
    assert says in message and not (out / policy).exists()


def test_an_adapter_that_started_with_more_than_pairs_is_refused(base, folder, tmp_path, complete, refused):
    """What verl's files have of these has other names, and would be left out."""
    save_lora(adapted(base, 0), base, folder / "main")
    complete(main={"start_adapter": str(tmp_path)})
    for found in ({"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}):
        (tmp_path / "adapter_config.json").write_text(json.dumps(found))
        assert f"has {next(iter(found))}=" in refused()
