from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_mas.checks import machine
from verl_mas.checks.run import validate
from verl_mas.config.compose import compose

SCRIPT = importlib.util.spec_from_file_location("convert", Path(__file__).parents[2] / "scripts" / "convert_config.py")
convert = importlib.util.module_from_spec(SCRIPT)
SCRIPT.loader.exec_module(convert)

OF_AGENTS = "agent.agent_specific_parameters.actor"
MATH = [  # The relevant settings of examples/drmas_trainer/run_math.sh of Dr. MAS at 19c632b
    *("algorithm.adv_estimator=grpo", "algorithm.group_by_agent_id=True", "data.train_batch_size=32"),
    *("data.max_prompt_length=8192", "data.max_response_length=4096", "data.truncation=middle"),
    *(
        "actor_rollout_ref.model.path=null",
        "actor_rollout_ref.actor.optim.lr=null",
        f"+{OF_AGENTS}.optim.lr=[1e-6,2e-6]",
    ),
    "actor_rollout_ref.actor.use_adaptive_ppo_mini_batch_size=True",
    *("actor_rollout_ref.actor.ppo_mini_update_num=1", "actor_rollout_ref.actor.invalid_action_penalty_coef=0.1"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.name=sglang"),
    *(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "env.rollout.n=8",
        "env.seed=0",
        "trainer.n_gpus_per_node=4",
    ),
    *("agent.orchestra_type=math", "agent.orchestra.math.max_loop_num=2", "agent.model_sharing=False"),
    'agent.agent_ids=["Solver Agent","Verifier Agent"]',
    'agent.model_ids=["Qwen/Qwen3-4B","Qwen/Qwen3-4B"]',
]


THEIRS = """\
defaults: [_self_]
specialization: prompt
lora_rank: 0
env: {name: stateful_env, benchmark: plan_path, max_turns: 5}
base_models: {policy_0: {path: Qwen/Qwen3-1.7B, name: shared}}
agent_policy_configs:
  agent_configs:
    agent_0: {name: plan_agent, policy_name: shared, train_llm_config: {temperature: 1.5, top_k: 20, min_p: 0.0}}
    agent_1: {name: tool_call_agent, policy_name: shared, train_llm_config: {temperature: 1.5, top_k: 20, min_p: 0.0}}
multi_agent_interaction: {turn_order: [tool_call_agent, plan_agent]}
training: {train_batch_size: 32, train_sample_num: 4, max_prompt_length: 4096, max_response_length: 2048}
models:
  model_0:
    path: "${base_models.policy_0.path}"
    name: shared
    ppo_trainer_config: {filter_method: mean, filter_ratio: 0.5, data: {max_prompt_length: "${data.max_prompt_length}"}}
"""  # The relevant settings of pettingllms/config/stateful/stateful_L1_prompt.yaml of PettingLLMs at a054fb1


@pytest.fixture
def converted(capsys, monkeypatch):
    monkeypatch.setattr(machine, "available", lambda config: None)

    def run(*arguments):
        convert.main(*arguments)
        config = compose(shlex.split(capsys.readouterr().out.replace("\\\n", " "))[3:])
        validate(config)
        return config

    return run


def test_dr_mas_with_an_llm_per_agent(converted):
    config = converted("drmas", *MATH)
    assert config.mas.policies.verifier.overrides.actor.optim.lr == 2e-6 and len(config.mas.policies) == 2
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-4B" and config.actor_rollout_ref.rollout.n == 8
    # This value is the default of Dr. MAS, because MATH does not set it.
    assert config.actor_rollout_ref.actor.entropy_coeff == 0.001
    assert config.algorithm.adv_estimator == "agent_grpo" and config.mas.updates_per_step == 1


def test_the_control_of_dr_mas_is_the_released_one(converted):
    config = converted("drmas", *MATH, "algorithm.group_by_agent_id=False")
    assert config.algorithm.adv_estimator == "team_grpo" and config.mas.advantage.session_mean


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["algorithm.adv_estimator=rloo"], {"algorithm.adv_estimator": "agent_rloo"}),
        (
            ["algorithm.adv_estimator=rloo", "algorithm.group_by_agent_id=False"],
            {"algorithm.adv_estimator": "team_grpo", "mas.advantage.baseline": "leave_one_out"},
        ),
        (
            ["algorithm.adv_estimator=gigpo", "algorithm.gamma=0.9", "algorithm.gigpo.mode=mean_std_norm"],
            {"algorithm.adv_estimator": "agent_gigpo", "mas.advantage.gamma": 0.9, "mas.advantage.scale": "std"},
        ),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=5"],
            {"mas.filter.drop": "uniform", "mas.filter.by": "team", "mas.filter.max_rounds": 5},
        ),
    ],
)
def test_other_estimators_of_dr_mas_and_the_filter(converted, words, settings):
    config = converted("drmas", *MATH, *words)
    assert {key: OmegaConf.select(config, key) for key in settings} == settings


def test_a_script_is_run_with_a_python_that_trains_nothing(converted, tmp_path):
    words = " ".join(map(shlex.quote, MATH))
    script = f'echo "$1 mode"\nn=16\npython3 -m verl.trainer.main_ppo {words} env.rollout.n=$n\n'
    (tmp_path / "run.sh").write_text(script)
    config = converted("drmas", str(tmp_path / "run.sh"), "eval", "trainer.total_epochs=3")
    assert config.actor_rollout_ref.rollout.n == 16 and config.trainer.total_epochs == 3


def test_pettingllms_with_one_llm(converted, tmp_path):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    config = converted("pettingllms", str(tmp_path / "theirs.yaml"), "env.max_turns=4")
    assert config.mas.workflow.name == "tool_user_planner" and config.mas.workflow.args.max_turns == 4
    assert config.mas.branch.k == 4 and config.actor_rollout_ref.rollout.temperature == 1.5
    assert not config.mas.get("policies") and not config.actor_rollout_ref.model.lora_rank


def test_pettingllms_with_an_adapter_per_agent_of_which_one_is_not_trained(converted, tmp_path):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    lora = ["specialization=lora", "lora_rank=16", "multi_agent_interaction.agent_untrained=[plan_agent]"]
    greedy = "agent_policy_configs.agent_configs.agent_0.train_llm_config.temperature=0.5"
    config = converted("pettingllms", str(tmp_path / "theirs.yaml"), *lora, greedy)
    assert config.mas.policies.tool_user.adapter_of == "main" and config.actor_rollout_ref.model.lora_rank == 16
    assert not config.mas.agents.planner.trainable and config.mas.agents.planner.sampling.temperature == 0.5


def test_pettingllms_with_one_agent(converted, tmp_path):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    config = converted("pettingllms", str(tmp_path / "theirs.yaml"), "multi_agent_interaction.turn_order=[plan_agent]")
    assert config.mas.workflow.name == "single_player"


@pytest.mark.parametrize(
    ("kind", "words", "says"),
    [
        ("drmas", ["algorithm.adv_estimator=gae"], "gae with group_by_agent_id=True: known: grpo with True"),
        ("drmas", ["data.truncation=right", "trainer.new=1"], r"=right: known: error(.|\n)*trainer\.new=1"),
        ("drmas", ["agent.model_sharing=True"], "verifier of model_0: .*2e-06.*agents of one model"),
        ("drmas", ["agent.orchestra_type=debate"], "debate of Solver Agent and Verifier Agent"),
        ("drmas", [f"{OF_AGENTS}.strategy=[fsdp,fsdp]"], r"actor\.strategy: no counterpart"),
        ("pettingllms", ["specialization=rank"], "rank: known: prompt"),
        ("pettingllms", ["workflow_type=graph"], "graph: no counterpart"),
        ("pettingllms", ["env.name=search_env"], r"search_env of .*; the search team here"),
        ("pettingllms", ["env.max_turns=${turns}"], r"max_turns=\$\{turns\}: give it"),
    ],
)
def test_what_has_no_equal_is_refused_by_name(kind, words, says, tmp_path):
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    with pytest.raises(SystemExit, match=says):
        convert.main(kind, *(MATH if kind == "drmas" else [str(tmp_path / "theirs.yaml")]), *words)
