"""Every team on toy tasks: no reply breaks it."""

from functools import partial

import pytest
from in_process_programs import NAME
from played import task_of

from verl_mas.config.hydra.recipe.guide_driver import team as guide_driver
from verl_mas.config.hydra.recipe.lookup.tables import CUT, SHARDS
from verl_mas.config.hydra.recipe.smollm2 import words as secret_words
from verl_mas.config.hydra.recipe.split_clues import clues as split_clues
from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym.puzzles.puzzle import row
from verl_mas.testing.check_workflow import check_workflow
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Task
from verl_mas.workflow.base import WORKFLOWS, find, resolve

PLAY = task_of(row("plan_path", 0, TRAIN, {"size": 5, "min_distance": 4})), "<actions>U R</actions>"
PROGRAM = PLAY[0], {"tool_user": "```python\nprint('U')\n```", "planner": PLAY[1]}
SAID = "<message>a</message>"
DRIVE = task_of(guide_driver.items(1, split=TRAIN)[0].row(0, TRAIN)), {"guide": SAID, "driver": "<actions>U</actions>"}
SECRET = task_of(secret_words.items("asked", 1)[0].row(0, TRAIN)), "red"
TALK = task_of(split_clues.items(1)[0].row(0, TRAIN)), {"sender": SAID, "receiver": "<answer>a</answer>"}
# b -> c -> a, in the first shard and then in the second.
TABLE = Task([{"role": "user", "content": "b"}], ground_truth="a", extra_info={SHARDS: CUT.join(["1 d c", "2 a b"])})
# (team, its arguments, (task, replies))
TEAMS = [
    ("planner_executor", {"max_turns": 2}, PLAY),
    ("planner_executor", {"max_turns": 2, "continuations": 1}, PLAY),
    ("planner_executor", {"max_turns": 2, "fork": "first"}, PLAY),
    ("planner_executor", {"max_turns": 2, "fork": "round_robin"}, PLAY),
    ("single_player", {"max_turns": 2}, PLAY),
    ("tool_user_planner", {"max_turns": 2, "execution": {"executor": NAME}}, PROGRAM),
    ("guide_driver", {"max_turns": 2}, DRIVE),
    (
        "guide_driver",
        {"max_turns": 2, "text": "compact", "speaks": "every_turn"},
        (DRIVE[0], {"guide": "a", "driver": "U"}),
    ),
    ("guide_driver", {"max_turns": 2, "control": "all"}, DRIVE),
    ("guide_driver", {"max_turns": 2, "left_out": 1}, DRIVE),
    ("guide_driver", {"max_turns": 2, "map": "picture"}, DRIVE),
    ("secret_words", {}, SECRET),
    ("secret_words", {"control": "own"}, SECRET),
    ("split_clues", {}, TALK),
    ("split_clues", {"text": "compact", "rounds": 2}, (TALK[0], "a")),
    ("split_clues", {"control": "part"}, TALK),
    ("split_clues", {"left_out": 1}, TALK),
    ("sharded_lookup", {}, (TABLE, {"leader": [" b", " c", " = a"], "worker": " c"})),
    ("single_reader", {}, (TABLE, " c a")),
]
FOLDERS = ("verl_mas.gym.", "verl_mas.config.hydra.recipe.")
# Teams that answer any question: tests/workflows/test_every_team.py.
ANSWERING = {"cory", "debate", "generate_verify_refine", "peers", "search_chain", "world_exploitability"}


def test_every_team_is_here():
    ours = {name for name in WORKFLOWS if find(name).__module__.startswith(FOLDERS)}
    assert {name for name, *_ in TEAMS} == ours - ANSWERING


@pytest.mark.parametrize(("name", "arguments", "played"), TEAMS)
def test_no_reply_breaks_it(name, arguments, played):
    task, replies = played
    report = check_workflow(partial(resolve, WorkflowSpec(name, args=arguments)), replies, task)
    assert report.ok, str(report)
