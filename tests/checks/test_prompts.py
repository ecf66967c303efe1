from __future__ import annotations

from pathlib import Path

import pytest
import urllib_team

from verl_mas.checks.lengths import INSTRUCTION, check_stated_prompts
from verl_mas.checks.prompts import check_prompts
from verl_mas.config.run import Run
from verl_mas.workflow.base import WORKFLOWS

UNSTATED = """
from verl_mas.workflow import Outcome, Workflow

class Mine(Workflow):
    agents = ("scout", "judge")

    async def run(self, task, team):
        first = await team.scout.act(task.question)
        second = await team.judge.act(f"{first} {first}")
        return Outcome(answer=second, reward=REWARD)
"""
PAID = "float(len(second.text))"


@pytest.fixture
def look(make, letters):
    def look(prompt=150, response=30, **settings):
        lengths = {"data__max_prompt_length": prompt, "data__max_response_length": response}
        data = {f"data__{name}_files": str(letters / "train.parquet") for name in ("train", "val")}
        model = {"actor_rollout_ref__model__path": str(letters / "model")}
        run = Run.of(make(**{**lengths, **data, **model, **settings}))
        return [str(problem) for problem in check_prompts(run)]

    return look


def test_what_a_team_states_is_compared_with_what_the_rollout_allows(look):
    assert look(prompt=1000) == []
    (warning,) = look(response=30)
    assert "agent solver" in warning and "2 x 30 tokens of replies" in warning and "tokens of 150" in warning
    length = int(warning.partition("data.max_prompt_length=")[2].split()[0])
    assert 2 * 30 + INSTRUCTION < length < 2 * 30 + INSTRUCTION + 400
    assert look(prompt=length, response=30) == []


def test_a_form_that_no_reply_is_long_enough_for_is_refused(look):
    (refused,) = [problem for problem in look(prompt=1000, response=20) if "verifier is asked for" in problem][:1]
    assert "<verify>approve</verify>" in refused and "at most 20 tokens" in refused


def test_prompts_that_are_cut_and_replies_that_are_shorter_are_no_problem(look):
    cut = {"solver": {"truncation": "middle"}, "verifier": {"truncation": "middle"}}
    assert look(response=200, mas__agents=cut) == []
    short = {name: {"sampling": {"max_tokens": 30}} for name in ("solver", "verifier")}
    assert look(prompt=400, response=300, mas__agents=short) == []


def test_a_workflow_that_states_nothing_is_played_with_replies_of_the_longest_length(look, workflow_file):
    mine = workflow_file(UNSTATED.replace("REWARD", PAID))
    assert look(prompt=400, **mine) == []
    (warning,) = look(prompt=100, response=60, **mine)
    assert "agent judge" in warning and "measured in a session" in warning


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (("reward=REWARD", "reward=first.parse(int)"), "has no attribute 'parse'"),
        (("first = await", "first ="), "`await` is missing: Agent.act was never awaited"),
        (("team.scout.act(task.question)", 'team.scout.branch("a")'), "scout's branch of turn 0 was never committed"),
        (("first = await", "__import__('time').sleep(0.3); first = await"), "blocks the event loop"),
        (("answer=second", "answer=[second]"), "it is a Reply, a text or None"),
        (("act(task.question)", 'act([{"role": "human", "content": "a"}])'), "on a message of the role 'human'"),
    ],
)
def test_what_a_workflow_does_wrong_in_that_session_is_seen(look, workflow_file, replaced, says):
    warning, *_ = look(prompt=400, **workflow_file(UNSTATED.replace(*replaced).replace("REWARD", PAID)))
    assert says in warning


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("1.0", "rewards [1.0, 1.0] for any reply that was tried"),
        ("__import__('random').random()", "for the same replies"),
        ("team.random('x').random() + len(second.text)", None),
        ("float(first.text == second.text)", None),
        ("0.0", "[0.0, 0.0] for any reply that was tried"),
        ("0.0 if task.validate else float(len(second.text))", "as one of validation: rewards [0.0, 0.0]"),
    ],
)
def test_a_reward_that_is_not_of_the_replies_is_warned_of(look, workflow_file, reward, says):
    found = look(prompt=400, **workflow_file(UNSTATED.replace("REWARD", reward)))
    assert len(found) == bool(says) and all(says in problem for problem in found)


@pytest.mark.parametrize(("asked", "found"), [("Write between <it> and </it>.", 0), ("Write it.", 1)])
def test_the_ground_truth_is_tried_in_a_tag_that_the_prompt_asks_for(look, workflow_file, asked, found):
    mine = UNSTATED.replace("REWARD", "float(f'<it>{task.ground_truth}</it>' in second.text)")
    assert len(look(prompt=400, **workflow_file(mine.replace("{first} {first}", f"{{first}} {asked}")))) == found


@pytest.mark.parametrize("stated", [False, True])
def test_the_ground_truth_is_tried_in_the_form_of_the_workflow(look, workflow_file, stated):
    form = "type('Form', (), {'render': lambda self, value: f'It is {value}.'})()"
    mine = UNSTATED.replace("REWARD", "float(second.text == f'It is {task.ground_truth}.') - 0.5")
    mine += f"\n    def answer_form(self, data_source):\n        return {form}\n" if stated else ""
    assert len(look(prompt=400, **workflow_file(mine))) == (not stated)


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (
            ("team.scout.act(task.question)", 'team.scout.act(f"{task.ground_truth}")'),
            "the ground truth is in a prompt of scout",
        ),
        (("team.scout.act(task.question)", "team.scout.act(task.question, seed=3)"), "scout acts with seed=3"),
        (
            ("team.scout.act(task.question)", "team.scout.act(task.question, temperature=0)"),
            "scout acts with temperature=0",
        ),
        ((PAID, "1 / (len(second.text) - 1)"), "or with calls of its tools: ZeroDivisionError"),
        ((PAID, "float(second.text in task.ground_truth)"), "rewards [1.0, 1.0] for empty replies"),
    ],
)
def test_what_a_workflow_asks_and_pays_is_looked_at(look, workflow_file, replaced, says):
    (warning,) = look(prompt=400, **workflow_file(UNSTATED.replace("REWARD", PAID).replace(*replaced)))
    assert says in warning


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (
            ('f"{first} {first}"', 'f"Judge {task.question}"'),
            "what scout writes changes no prompt, no answer and no reward",
        ),
        (("task.question", "task.messages"), None),
        (('f"{first} {first}"', 'f"{first} Put it between <it> and </it>."'), "the form that prompts ask for (it)"),
    ],
)
def test_sessions_that_differ_in_one_thing_are_compared(look, workflow_file, replaced, says):
    paid = "float(f'\\\\boxed{{{task.ground_truth}}}' in second.text)"
    found = look(prompt=400, **workflow_file(UNSTATED.replace("REWARD", paid).replace(*replaced)))
    assert len(found) == bool(says) and all(says in problem for problem in found)


@pytest.mark.parametrize(("asked", "warned"), [("task.question", False), ('"{task.question}"', True)])
def test_a_prompt_that_is_the_same_on_every_task_is_warned_of(look, workflow_file, asked, warned):
    mine = UNSTATED.replace("REWARD", PAID).replace("act(task.question)", f"act({asked})")
    found = look(prompt=400, **workflow_file(mine))
    assert any("the prompt of scout is the same on" in problem for problem in found) == warned == bool(found)


@pytest.mark.parametrize(("parsed", "warned"), [("", True), (".parse(Boxed())", False)])
def test_a_penalty_for_what_no_reply_is_found_to_be_is_warned_of(look, workflow_file, parsed, warned):
    mine = UNSTATED.replace("REWARD", PAID).replace("import Outcome", "import Boxed, Outcome")
    mine = workflow_file(mine.replace("return Outcome(", f"second{parsed}\n        return Outcome("))
    found = look(prompt=400, **mine, mas__agents__judge={"format_penalty": 0.5})
    assert ["no reply of judge is found malformed" in problem for problem in found] == [True] * warned


TALK = """
from verl_mas.workflow import Outcome, Workflow

class Mine(Workflow):
    agents = ("judge",)
    rounds: int = 2

    async def run(self, task, team):
        talk, history = team.judge.conversation(), [{"role": "user", "content": task.question}]
        for turn in range(3):
            reply = await talk.act(history)
            more = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": f"{turn}?"}]
            history = MORE
        return Outcome(answer=reply, reward=float(len(reply.text)))
"""


@pytest.mark.parametrize(("more", "warned"), [("history + more", True), ("more[1:]", False)])
def test_a_conversation_that_is_given_its_history_again_is_warned_of(look, workflow_file, more, warned):
    found = look(prompt=900, **workflow_file(TALK.replace("MORE", more)))
    assert [problem for problem in found if "a prompt of judge has a reply twice" in problem] == found
    assert len(found) == warned


@pytest.mark.parametrize(
    ("args", "run", "warned"),
    [
        ({"rounds": 3}, "range(3)", True),
        ({"rounds": 3}, "range(self.rounds)", False),
        ({"rounds": 2}, "range(3)", False),
    ],
)
def test_an_argument_that_no_session_reads_is_warned_of(look, workflow_file, args, run, warned):
    mine = workflow_file(TALK.replace("MORE", "more[1:]").replace("range(3)", run))
    mine["mas__workflow"]["args"] = args
    found = look(prompt=900, **mine)
    assert ["mas.workflow.args.rounds=3, which no session reads" in problem for problem in found] == [True] * warned


ROUTED = """
from verl_mas.workflow import Choice, Outcome, Workflow

class Route(Choice, tag="to"):
    A, B = "a", "b"

class Mine(Workflow):
    agents = ("router", "judge")
    rounds: int = 2
    routed: bool = False

    async def run(self, task, team):
        reply = await team.router.act(f"{task.question} {Route.prompt()}")
        if self.routed and reply.parse(Route) is not Route.B:
            return Outcome(answer=reply, reward=float(len(reply.text)))
        for _ in range(self.rounds - 1):
            reply = await team.judge.act(f"Judge {reply}.")
        return Outcome(answer=reply, reward=float(len(reply.text)))
"""


@pytest.mark.parametrize(
    ("args", "agents", "warned"),
    [
        ({"rounds": 1}, None, True),
        ({"rounds": 1}, {"trainable": False}, False),
        ({"rounds": 3}, None, False),
        ({"routed": True}, None, False),  # The prompt says when it acts.
    ],
)
def test_an_agent_that_an_argument_keeps_from_acting_is_warned_of(look, workflow_file, args, agents, warned):
    mine = workflow_file(ROUTED)
    mine["mas__workflow"]["args"] = args
    found = look(prompt=400, **mine, **({"mas__agents__judge": agents} if agents else {}))
    assert len(found) == warned and all("rounds=1" in problem and "asks judge" in problem for problem in found)


PROGRAM = f"""{Path(urllib_team.__file__).read_text()}
from verl_mas import program

@program(agents=("writer", "critic"))
def Mine(task, gateway):
    CRITIC
    return float(len(ask(gateway, "writer", task.messages)["content"]))
"""


@pytest.mark.parametrize(("critic", "warned"), [("pass", True), ("'critic' if 0 else None", False)])
def test_an_agent_that_the_file_of_a_program_names_once_is_warned_of(look, workflow_file, critic, warned):
    found = look(prompt=400, **workflow_file(PROGRAM.replace("CRITIC", critic)))
    assert ["agent critic of workflow Mine" in problem for problem in found] == [True] * warned


def test_so_is_one_of_a_shipped_team(look):
    (warning,) = look(prompt=1000, mas__workflow__args={"max_rounds": 1})
    assert "mas.workflow.args.max_rounds=1" in warning and "asks verifier" in warning


@pytest.mark.parametrize(("info", "warned"), [("", True), (", info={'acc': 1.0}", False)])
def test_an_acc_that_tasks_are_left_out_by_and_no_session_reports_is_warned_of(look, workflow_file, info, warned):
    mine = workflow_file(UNSTATED.replace("REWARD", f"{PAID}{info}"))
    found = look(prompt=400, **mine, mas__filter={"drop": "uniform", "by": "acc"})
    assert [problem.startswith("mas.filter.by=acc") for problem in found] == [True] * warned


def test_a_template_that_leaves_the_task_out_is_refused(look):
    template = (
        "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% endif %}{% endfor %}"
    )
    refused, *_ = look(actor_rollout_ref__model__custom_chat_template=template)
    assert "leaves out a message" in refused and "custom_chat_template" in refused
    spaced = "{% for message in messages %}{{ message.content | upper | lower | tojson }}{% endfor %}"
    assert not any("leaves out" in problem for problem in look(actor_rollout_ref__model__custom_chat_template=spaced))


def test_that_verl_would_have_to_score_an_unknown_data_source_is_seen_in_that_session(look, workflow_file):
    refused, *_ = look(prompt=400, **workflow_file(UNSTATED.replace("REWARD", "None")))
    assert "has no rule for this one" in refused


def test_a_plan_knows_the_replies_alone(two):
    run = Run.of(two(data__max_prompt_length=512, data__max_response_length=1024))
    (warning,) = check_stated_prompts(run)
    assert "the task (not counted) and 2 x 1024" in str(warning)


# What a program of another framework or an environment of verifiers sends is its own, and so is what a world shows.
@pytest.mark.parametrize("name", sorted({*WORKFLOWS} - {"program", "verifiers", "world", "world_exploitability"}))
def test_every_shipped_team_states_its_longest_prompt(name):
    assert WORKFLOWS[name]().longest_prompt("any") is not None


def test_a_subclass_with_a_run_of_its_own_states_nothing_of_its_base():
    class Other(WORKFLOWS["solver_verifier"]):
        async def run(self, task, team): ...

    assert Other().longest_prompt("solver") is None and Other().answer_form(None) is None
