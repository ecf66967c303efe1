"""The data set `math`: the sets of Dr. MAS, with revisions and row counts that several public projects pin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from verl_mas.cli.data._public import Questions
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import Item
from verl_mas.data.sources import PublicSet
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import DataError

# Instructions in DAPO's problems. They are removed, because a workflow's prompts say how to answer.
INSTRUCTIONS = re.compile(
    r"^Solve the following math problem step by step\..*?where \$Answer is the answer to the problem\.\s*"
    r'|\s*Remember to put your answer on its own line after "Answer:"\.\s*$'
    r"|(\\n|\s)*Let'?s think step by step and output the final answer within \\boxed\{\}\.\s*$",
    re.IGNORECASE | re.DOTALL,
)
QUESTION_FIELDS, ANSWER_FIELDS = ("problem", "question"), ("answer", "golden_answers", "answers")
TRAIN = (PublicSet("dapo_filter", "aaabiao/dapo_filter", "train"),)
TEST = (
    PublicSet("math500", "HuggingFaceH4/MATH-500", "test", "ff5b20257d8185524591543f8ff5993951537bb8", 500),
    PublicSet("aime24", "HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", 30),
    PublicSet("aime25", "MathArena/aime_2025", "train", "c94da77eb22bbd6439e62a323bec18493a421302", 30),
    PublicSet("amc23", "knoveleng/AMC-23", "train", rows=40),
    PublicSet("olympiadbench", "realtreetune/olympiadbench", "test"),
    PublicSet("minerva", "zwhe99/simplerl-minerva-math", "test", rows=272),
)
# Questions per test set for validation during training.
IN_TRAINING = {"math500": 50, "aime24": 30, "aime25": 30, "amc23": 0, "olympiadbench": 0, "minerva": 0}


def math_item(row: Row, number: int, source: str) -> Item:
    truth = truth_of(row)
    if truth is not None and (isinstance(truth, bool) or not isinstance(truth, str | int | float) or truth != truth):
        value = f"{source}, row {number} has the ground truth {truth!r}"
        rule = "a math problem has one answer, a text or a number"
        raise DataError(value, rule=rule, fix="give the answer itself, not a list or a mapping")
    text = "" if truth is None else str(truth).strip()
    if not text:
        raise no_truth(row, number, source)
    return Item(question_of(row, number, source), text, source)


def question_of(row: Row, number: int, source: str) -> str:
    text = next((row[name] for name in QUESTION_FIELDS if row.get(name)), None)
    if text is None and (prompt := row.get("prompt")):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    cleaned = INSTRUCTIONS.sub("", text).strip() if isinstance(text, str) else ""
    if not cleaned:
        value = f"{source}, row {number} has no question"
        rule = f"a row has one of the fields {', '.join(QUESTION_FIELDS)}, or a prompt"
        raise DataError(value, rule=rule, fix=f"correct the row; its fields are {', '.join(map(str, row)) or 'none'}")
    return cleaned


def truth_of(row: Row) -> object:
    reward_model = row.get("reward_model")
    if isinstance(reward_model, Mapping) and reward_model.get("ground_truth") is not None:
        return reward_model["ground_truth"]
    return next((row[name] for name in ANSWER_FIELDS if row.get(name) is not None), None)


def no_truth(row: Row, number: int, source: str) -> DataError:
    rule = f"a row has one of the fields {', '.join(ANSWER_FIELDS)}, or reward_model.ground_truth"
    fix = f"correct or remove the row; its fields are {', '.join(map(str, row)) or 'none'}"
    return DataError(f"{source}, row {number} has no ground truth", rule=rule, fix=fix)


@DATA_SETS.register("math")
class Math(Questions):
    """The math team's public sets, or files of your own."""

    train_sets: Sequence[PublicSet] = TRAIN
    test_sets: Sequence[PublicSet] = TEST
    make = staticmethod(math_item)
    in_training = IN_TRAINING
    otherwise = 50
