"""Two adapters on one base, compared with two separate LoRA policies and with a resumed run. All teams also use the
bare base."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from verl_mas.results.sessions.reader import read_sessions
from verl_mas.run_folder.checkpoints import POINTER

pytestmark = pytest.mark.e2e
ADAPTERS = ("one", "two")
RATES = {"one": 1e-2, "two": 3e-3}
STEPS = 4
SETTINGS = (
    "mas.agents={writer:{policy:one},earlier:{policy:main},copier:{policy:two}}",
    "++actor_rollout_ref.model.lora_rank=4 ++actor_rollout_ref.model.lora_alpha=8",
    "actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.rollout.full_determinism=true",
    f"data.train_batch_size=2 trainer.total_training_steps={STEPS} trainer.save_freq=2 mas.old_log_probs_every=1",
)


@pytest.fixture(scope="module")
def starts(letters, tmp_path_factory):
    """Folders with initial weights of each adapter, which do not change the base's outputs."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folders = {}
    for seed, name in enumerate(ADAPTERS):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(letters / "model")
        config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        folders[name] = tmp_path_factory.mktemp("starts") / name
        get_peft_model(model, config).save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="module")
def train(train_team, starts):
    def train(folder, *, shared: bool):
        own = {
            name: f"model:{{lora_adapter_path:{starts[name]}}},actor:{{optim:{{lr:{RATES[name]}}}}}" for name in starts
        }
        base = "adapter_of:main," if shared else ""
        policies = [f"{name}:{{{base}overrides:{{{settings}}}}}" for name, settings in own.items()]
        merged = "++mas.policies.main.overrides.model.lora_rank=0 ++actor_rollout_ref.model.lora.merge=true"
        team = f"mas.policies={{{','.join([*policies, 'main:{trainable:false}'])}}}"
        return train_team(folder, "Rehearsed", team, "" if shared else merged, *SETTINGS)

    return train


@pytest.fixture(scope="module")
def shared(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("shared") / "run", shared=True)


@pytest.fixture(scope="module")
def resumed(train, shared, tmp_path_factory):
    """The same run from the checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(shared.checkpoint(2), folder / "checkpoints" / "global_step_2")
    (folder / "checkpoints" / POINTER).write_text("2")
    return train(folder, shared=True)


def weights(run, step, name):
    return load_file(run.checkpoint(step) / name / "adapter_model.safetensors")


def of_steps(run, policy, key):
    return [metrics[f"policy/{policy}/{key}"] for metrics in run.steps.values()]


def replies(run):
    sessions = read_sessions(run.folder / "checkpoints" / "trajectories")
    return {act["key"]: (act["agent"], act["policy"], act["text"]) for one in sessions for act in one["acts"]}


@pytest.mark.nightly
def test_adapters_on_one_base_end_where_two_lora_policies_with_bases_of_their_own_end(
    train, shared, weights_of, tmp_path
):
    """The replies of all agents are the same, so the bare base also replies like a frozen policy."""
    separate = train(tmp_path / "run", shared=False)
    assert replies(shared) == replies(separate)
    assert len({reply for _, _, reply in replies(shared).values()}) > 10, "nothing was sampled"
    for name in ADAPTERS:
        found, expected = weights(shared, STEPS, name), weights_of(separate.checkpoint(STEPS) / name)
        of_lora = {key.replace(".default.", "."): value for key, value in expected.items() if "lora_" in key}
        assert found.keys() == of_lora.keys()
        assert all(torch.equal(found[key], of_lora[key]) for key in found), name
        for key in ("actor/kl_loss", "actor/pg_loss", "actor/grad_norm", "actor/entropy"):
            assert of_steps(shared, name, key) == pytest.approx(of_steps(separate, name, key), abs=1e-5), (name, key)


def test_engine_and_trainer_agree_on_each_adapter_also_when_they_differ(shared):
    for name in ADAPTERS:
        assert max(of_steps(shared, name, "training/rollout_probs_diff_max")) < 1e-5
        first, last = (weights(shared, step, name) for step in (2, 4))
        assert any(not torch.equal(first[key], last[key]) for key in first)


def test_each_adapter_has_its_own_rate_and_the_base_is_not_trained(shared):
    for name in ADAPTERS:
        assert of_steps(shared, name, "actor/lr") == pytest.approx([RATES[name]] * STEPS)
        losses = of_steps(shared, name, "actor/kl_loss")
        assert losses[0] == 0.0 and min(losses[1:]) > 0, "the reference is the base"
    for metrics in shared.steps.values():
        assert not any(key.startswith("policy/main/rows") for key in metrics)


@pytest.mark.nightly  # policies with weights of their own are resumed in every run of the tests
def test_a_resumed_run_ends_where_the_unbroken_one_does_bit_for_bit(shared, resumed):
    assert sorted(resumed.steps) == [3, 4]
    files = sorted(path.name for path in (shared.checkpoint(STEPS) / "one").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors", "optimizer.pt"]
    for name in ADAPTERS:
        folders = [run.checkpoint(STEPS) / name for run in (shared, resumed)]
        for file in files:
            if file != "optimizer.pt":
                assert len({(folder / file).read_bytes() for folder in folders}) == 1, (name, file)
        (one, steps), (other, again) = (torch.load(path / "optimizer.pt", weights_only=True) for path in folders)
        assert steps == again == STEPS
        first, second = ({(key, kind): own[key][kind] for key in own for kind in own[key]} for own in (one, other))
        assert first.keys() == second.keys() and first
        assert all(torch.equal(torch.as_tensor(first[key]), torch.as_tensor(second[key])) for key in first)


def test_a_checkpoint_has_nothing_of_the_bases_weights(shared, letters):
    sizes = [path.stat().st_size for path in (shared.checkpoint(STEPS) / "main").rglob("*")]
    assert [path.name for path in (shared.checkpoint(STEPS) / "main").iterdir()] == ["random_state_0_of_1.pt"]
    assert sum(sizes) < 20_000 < (letters / "model" / "model.safetensors").stat().st_size
    assert set(json.loads((shared.checkpoint(STEPS) / "run.json").read_text())["stored weights"]) == set(ADAPTERS)
