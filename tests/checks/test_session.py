"""The session that the check plays, and the reward functions that score its answers."""

import json

import pytest

from verl_mas.checks.answers import check_rewards
from verl_mas.checks.session import check_rows, check_session, longest_prompts, play

STOCK = {"mas": None, "trainer__v1__trainer_mode": "sync", "algorithm__adv_estimator": "grpo"}
PEERS = {"mas__workflow": {"name": "peers", "args": None}, "mas__agents": None, "mas__policies": None}
ASKS = "What is 2 + 3? "
FORMS = {"####": 'Write the answer after "####".', "box": "Put the answer within \\boxed{}."}
SCORED = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {}
"""
TEAM = """
from verl_mas.workflow import Outcome, Workflow


class Mine(Workflow):
    agents = ("solver",)

    async def run(self, task, team):
        {}
"""


def row(ask="####", source="openai/gsm8k", truth="5", **more):
    prompt = [{"role": "user", "content": ASKS + FORMS.get(ask, ask)}]
    return {"data_source": source, "prompt": prompt, "reward_model": {"ground_truth": truth}, **more}


@pytest.fixture
def say(on_rows):
    """Return all findings about a run on these rows, as one text."""

    def say(*rows, **settings):
        run = on_rows(rows or [row()], **{"data__max_prompt_length": 2000, **settings})
        played = play(run, {}) if run.mode else None
        of_session = check_session(run, played) if played else ()
        return "\n".join(map(str, [*check_rows(run), *of_session, *check_rewards(run, played)]))

    return say


def test_a_sound_run_has_nothing_said_of_it(say):
    assert say() == say(**STOCK) == ""


@pytest.mark.parametrize(
    ("rows", "settings", "says"),
    [
        ([row("box")], STOCK, "gives \\boxed{5}, the ground truth of the first row"),
        ([row(source="medical")], STOCK, "column 'data_source', first row: 'medical'"),
        ([row()], {**STOCK, "data__max_prompt_length": 8}, "and 8 are allowed"),
        ([row()], {**STOCK, "data__max_prompt_length": 8, "data__filter_overlong_prompts": True}, "leaves them out"),
        ([row()], {**STOCK, "reward__reward_manager__name": "batch"}, "reward_manager.name=batch"),
        ([row()], {"data__max_prompt_length": 100, "data__max_response_length": 1000}, "needs prompts of"),
        ([row()], {"mas__workflow__args": {"form": "box"}}, "set ++mas.workflow.args.form=hashes"),
    ],
)
def test_what_would_be_lost_is_said_with_the_setting(say, rows, settings, says):
    assert says in say(*rows, **settings)


def test_only_the_validation_of_peers_needs_a_ground_truth(say, tmp_path):
    (tmp_path / "held_out.jsonl").write_text(json.dumps(row("box")))
    assert say(row("box", truth=None), **PEERS, data__val_files=str(tmp_path / "held_out.jsonl")) == ""
    assert "has no ground_truth in reward_model" in say(row("box", truth=None), **PEERS)


def test_own_rewards_without_weight_are_refused_if_there_is_no_other_reward(say):
    found = say(**PEERS, mas__reward={"preset": "sparse"})
    assert "mas.reward.local=0 (preset sparse)\n  rule: some reward has a weight" in found
    assert "peer_0, peer_1" in found and "set ++mas.reward.local=1" in found


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("float(ground_truth in solution_str)", ""),
        ("[1.0]", "one finite number"),
        ("0.0 / 0", "ZeroDivisionError"),
        ("undefined", "NameError"),
    ],
)
def test_a_reward_function_gives_one_number(say, tmp_path, result, says):
    (tmp_path / "score.py").write_text(SCORED.format(result))
    found = say(**STOCK, reward__custom_reward_function__path=str(tmp_path / "score.py"))
    assert (says in found) if says else found == "", found


def test_a_reward_function_that_loads_a_model_onto_a_gpu_is_named(say, tmp_path):
    loads = "import torch\nmodel = torch.nn.Linear(4, 1).to('cuda')\n"
    (tmp_path / "score.py").write_text(loads + SCORED.format("1.0"))
    found = say(**STOCK, reward__custom_reward_function__path=str(tmp_path / "score.py"))
    assert "Ray hides GPUs from reward workers" in found


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return Outcome(await team.solver.act(task.messages))", ""),
        ("await team.solver.act(task.messages); return Outcome()", "gives no reward and no answer"),
        ("return Outcome(reward=1.0)", "no agent acted"),
        ("raise ValueError('no such row')", "no such row"),
        ("await team.solver.act(task.messages); raise KeyError('x')", "such a session is not trained on"),
        ("return Outcome(await team.solver.act([{'role': 'user'}]))", "content"),
    ],
)
def test_a_workflow_is_played_on_the_first_row(say, workflow_file, body, says):
    found = say(**workflow_file(TEAM.format(body)))
    assert (says in found) if says else found == "", found


def test_prompts_are_measured_with_short_and_with_long_replies(on_rows):
    run = on_rows([row()], data__max_response_length=800)
    played = play(run, {})
    least, longest = longest_prompts(run, played.requests)["verifier"]
    # The tokenizer of the tiny model has a token per byte, so a word has two.
    assert longest > 2 * 800 and least == pytest.approx(longest - 0.875 * 800, abs=20)
