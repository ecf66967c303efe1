"""Training of shared, frozen, remote, excluded and exchanged policies, on one worker and on two."""

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch

from verl_mas.results.sessions.reader import read_sessions

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
SERVER = HERE.parent / "support" / "mcp_server.py"
# Name of a tool, of a server and of a file -> the arguments of a call.
TOOLS = {"files_echo": '{"text": "environment"}', "repeat": '{"letter": "b"}'}


def answer(body):
    """Call the tools one after the other, and then give a fixed reply."""
    ended = sum(message["role"] == "tool" for message in body["messages"])
    names = [tool["function"]["name"] for tool in body.get("tools", [])[ended:][:1]]
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": TOOLS[name]}} for name in names]
    return {"content": "aaaa", "tool_calls": calls} if calls else "aaaa"


def test_a_frozen_and_a_remote_policy_serve_and_only_the_trainable_one_trains(
    train_team, weights_of, serve, tmp_path, monkeypatch
):
    monkeypatch.setenv("TEAM_KEY", "secret")
    server, endpoint = f"[{sys.executable},-I,-S,{SERVER},good,{tmp_path}]", serve(answer)
    done = train_team(
        tmp_path / "run",
        "Trio",
        f"mas.policies={{a:{{}},f:{{trainable:false}},r:{{remote:{{base_url:'{endpoint.url}',model:m,api_key_env:TEAM_KEY}}}}}}",
        "mas.agents={first:{policy:a},second:{policy:f},third:{policy:r,tools:[files_echo,repeat]}}",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={HERE}/letter_tools.py",
        f"++mas.mcp.files.command={server} mas.updates_per_step=3 trainer.total_training_steps=2 trainer.save_freq=1",
        "trainer.val_before_train=true",
    )
    for step in (1, 2):
        metrics = done.steps[step]
        assert metrics["policy/a/rows/real"] == metrics["agent/first/acts"] == 16
        assert metrics["policy/a/rows/padding"] == 2, "for three optimiser steps"
        assert 0 < metrics["agent/second/acts"] <= 16
        untrained = {key for key in metrics if key.startswith(("policy/f/", "policy/r/", "agent/third/reward"))}
        assert untrained == {"policy/f/requests"}
    saved = {path.name for path in done.checkpoint(2).iterdir()}
    assert saved == {"a", "data.pt", "driver_rng.pt", "run.json", "team.yaml"}
    assert learned(weights_of, done, "a")
    assert {headers["Authorization"] for headers in endpoint.headers} == {"Bearer secret"}
    assert "val-core/letters/pass@1" in done.steps[0]
    # The server of the tool does not get the key, and ends with its worker.
    results = {each["content"] for body in endpoint.bodies for each in body["messages"] if each["role"] == "tool"}
    assert "b" * 8 in results and len(results) > 1
    assert all("PATH" in text and "TEAM_KEY" not in text for text in results - {"b" * 8})
    assert done.steps[2]["agent/third/tool_calls"] > 0 == done.steps[2]["agent/third/tool_errors"]
    assert list((done.folder / "checkpoints" / "mcp").glob("files-*.log"))
    assert soon(lambda: str(tmp_path) not in str([process.info for process in psutil.process_iter(["cmdline"])]))


def learned(weights_of, done, policy: str) -> bool:
    before, after = (weights_of(done.checkpoint(step) / policy) for step in (1, 2))
    return any(not torch.equal(before[name], after[name]) for name in before)


def soon(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether a condition becomes true within this time."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


@pytest.fixture(scope="module")
def on_workers(train_team, tmp_path_factory):
    """Run three agents on two policies, one agent excluded from the loss, on a number of workers.

    Policy b has the defaults of verl's scripts: FSDP1, and micro batches of fixed sizes.
    """
    fixed = "actor:{strategy:fsdp,use_dynamic_bsz:false,ppo_micro_batch_size_per_gpu:4}"
    b = f"{{overrides:{{{fixed},rollout:{{log_prob_micro_batch_size_per_gpu:5}}}}}}"

    def run(workers: int):
        return train_team(
            tmp_path_factory.mktemp(f"workers{workers}") / "run",
            "Trio",
            f"mas.policies={{a:{{}},b:{b}}}",
            "mas.agents={first:{policy:a},second:{policy:a,trainable:false},third:{policy:b}} mas.updates_per_step=1",
            "mas.skip_zero_advantage=true mas.shared_prefixes=true data.train_batch_size=5",
            # Two letters score 0 so often that some groups have no advantage.
            "data.max_response_length=2 data.shuffle=false actor_rollout_ref.actor.entropy_coeff=0",
            # Adam, unlike SGD, turns the rounding of a gradient near zero into a whole step.
            "actor_rollout_ref.actor.optim.optimizer=SGD actor_rollout_ref.rollout.full_determinism=true",
            f"actor_rollout_ref.rollout.n=3 trainer.n_gpus_per_node={workers} trainer.total_training_steps=1",
            "trainer.save_freq=1",
        )

    return cache(run)


# The 9 rows of b are padded to the least multiple of 4 and 5 on each worker.
@pytest.mark.parametrize(("workers", "of_a", "of_b"), [pytest.param(1, 0, 11, marks=pytest.mark.nightly), (2, 1, 31)])
def test_an_agent_left_out_of_the_loss_gives_no_rows_and_padding_is_what_workers_and_micro_batches_need(
    on_workers, workers, of_a, of_b
):
    metrics = on_workers(workers).steps[1]
    assert metrics["policy/a/rows/real"] == metrics["agent/first/acts"] == 15
    assert metrics["agent/second/acts"] == metrics["agent/third/acts"] == metrics["policy/b/rows/real"] == 9
    assert (metrics["policy/a/rows/padding"], metrics["policy/b/rows/padding"]) == (of_a, of_b)
    assert metrics["policy/a/rows/skipped"] + metrics["policy/b/rows/skipped"] > 0
    assert metrics["policy/a/rows/shared_tokens"] > 0.2


@pytest.mark.nightly  # another whole run; in CI, tests/trainer/test_loss_weights.py compares the gradients of ranks
@pytest.mark.parametrize("policy", ["a", "b"])
def test_two_workers_make_the_update_that_one_makes(on_workers, weights_of, policy):
    one, two = (weights_of(on_workers(workers).checkpoint(1) / policy) for workers in (1, 2))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name].reshape(weight.shape), weight, atol=1e-6, rtol=1e-5, msg=name)


def test_a_time_sliced_pool_never_calls_a_sleeping_engine(train_team, tmp_path, weights_of):
    """The engine refuses requests while it sleeps, so a run that finishes has kept to the time slices.

    Fewer sessions may run at once than a task has. One policy trains an adapter, and the other has a reference, both on
    two workers with an engine each.
    """
    done = train_team(
        tmp_path / "run",
        "Pair",
        "mas.policies={a:{overrides:{model:{lora_rank:4,lora:{merge:true}}}},b:{overrides:{actor:{use_kl_loss:true}}}}",
        "mas.agents={writer:{policy:a},copier:{policy:b}} +mas.pools.shared.serving=phases mas.max_sessions=3",
        "actor_rollout_ref.rollout.free_cache_engine=true trainer.n_gpus_per_node=2 trainer.total_training_steps=2",
        "trainer.save_freq=2",
    )
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        for policy in ("a", "b"):
            assert metrics[f"policy/{policy}/rows/real"] == 16
            assert metrics[f"policy/{policy}/training/rollout_actor_probs_pearson_corr"] > 0.999
            # The engine has the adapter's weights, too, so only rounding differs.
            assert metrics[f"policy/{policy}/training/rollout_probs_diff_max"] < 1e-4
    first, last = done.steps[1], done.steps[2]
    assert {key for key in last if key.endswith("actor/kl_loss")} == {"policy/b/actor/kl_loss"}
    # At first the policy equals its reference; after an update it does not.
    assert abs(first["policy/b/actor/kl_loss"]) < 1e-6 < last["policy/b/actor/kl_loss"]
    assert last["policy/a/actor/grad_norm"] > 0
    assert len(list((done.checkpoint(2) / "b").glob("model_world_size_2_rank_*.pt"))) == 2
    adapters = {policy: [n for n in weights_of(done.checkpoint(2) / policy) if "lora" in n] for policy in ("a", "b")}
    assert adapters["a"] and not adapters["b"]


def test_validation_alone_scores_the_team_and_trains_nothing(train_team, tmp_path):
    done = train_team(
        tmp_path / "run",
        "Pair",
        "mas.policies={a:{trainable:false}} mas.agents={writer:{policy:a},copier:{policy:a}} trainer.val_only=true",
        "trainer.val_before_train=true actor_rollout_ref.rollout.val_kwargs.n=2",
        f"trainer.validation_data_dir={tmp_path}/generations",
    )
    found = done.steps[0]
    assert {"val-core/letters/pass@1", "val-core/letters/pass@2", "val-core/letters/pass@2/low"} <= set(found)
    assert found["val-agent/writer/acts"] == found["val-agent/copier/acts"] == 8
    lines = [json.loads(line) for line in (tmp_path / "generations" / "0.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and all("[writer]" in line["output"] and "[copier]" in line["output"] for line in lines)


def test_agents_exchange_their_policies_by_the_step_and_both_policies_learn(train_team, weights_of, tmp_path):
    done = train_team(
        tmp_path / "run",
        "Pair",
        "mas.policies={a:{},b:{}} mas.agents={writer:{policy:a},copier:{policy:b,sampling:{temperature:0.5}}}",
        "mas.swap={agents:[writer,copier],every:1} trainer.total_training_steps=2 trainer.save_freq=1",
        # A relative path belongs to the folder of the command, not to the folder of the cluster.
        "trainer.test_freq=2 algorithm.rollout_correction.rollout_is=token trainer.default_local_dir=checkpoints",
        f"trainer.rollout_data_dir={tmp_path}/generations",
    )
    played = defaultdict(set)
    records = done.folder / "checkpoints" / "trajectories"
    for session in chain(read_sessions(records), read_sessions(records, validate=True)):
        for act in session["acts"]:
            played[session["step"], session["partition"]].add((act["agent"], act["policy"]))
    configured, exchanged = {("writer", "a"), ("copier", "b")}, {("writer", "b"), ("copier", "a")}
    assert played == {(1, "train"): configured, (2, "train"): exchanged, (2, "val"): configured}
    for step in (1, 2):
        metrics = done.steps[step]
        assert metrics["session/progress/mean"] == (step - 1) / 2
        assert max(metrics[f"agent/{agent}/log_probs/max"] for agent in ("writer", "copier")) < 1e-5
        for policy in "ab":
            assert metrics[f"policy/{policy}/rows/real"] == metrics["agent/writer/acts"] == 16
            assert metrics[f"policy/{policy}/rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-4)
    assert "val-session/progress/mean" not in done.steps[2]
    lines = [json.loads(line) for line in (tmp_path / "generations" / "2.jsonl").read_text().splitlines()]
    assert Counter(line["agent"] for line in lines) == {"writer": 16, "copier": 16}
    assert learned(weights_of, done, "a") and learned(weights_of, done, "b")
