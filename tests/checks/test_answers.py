from __future__ import annotations

from itertools import zip_longest

import pytest
from wrong_configs.prepare import MESSAGES, files

from verl_mas.checks.answers import check_answers
from verl_mas.config.run import Run
from verl_mas.errors import ConfigWarning
from verl_mas.grading.grader import GRADERS, Grader
from verl_mas.workflow.base import resolve

GSM8K = 'How many? Let\'s think step by step and output the final answer after "####".'


@pytest.fixture
def look(make, tmp_path, monkeypatch):
    """The values of what is found on one row, each with its fix."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def look(source="openai/gsm8k", truth="72", question=GSM8K, team="solver_verifier", function="", **args):
        """`later`: the ground truth of the rows after the first; `extras`: the extra_info of the rows."""
        row = {"data_source": source, "reward_model": {"ground_truth": truth}}
        others = {"data_source": source, "reward_model": {"ground_truth": args.pop("later", truth)}}
        asked = [question] if isinstance(question, str) else question
        extras = args.pop("extras", [{"index": 0}])
        rows = [
            {**(others if place else row), "prompt": [{**MESSAGES[0], "content": each}], "extra_info": extra}
            for place, (each, extra) in enumerate(zip_longest(asked, extras, fillvalue=extras[0]))
        ]
        files(tmp_path, {"rows.parquet": rows})
        config = make(team, **{f"data__{name}_files": str(tmp_path / "rows.parquet") for name in ("train", "val")})
        if function:
            if not (tmp_path / "mine.py").exists():
                files(tmp_path, {"mine.py": function})
            config.reward.custom_reward_function = {"path": str(tmp_path / "mine.py"), "name": "score"}
        config.mas.workflow.args = args
        run = Run.of(config)
        found = list(check_answers(run, resolve(run.mas.workflow)))
        return [(problem.value, problem.fix, isinstance(problem, ConfigWarning)) for problem in found]

    return look


def test_a_team_answers_in_the_form_that_verls_scorer_of_the_data_source_reads(look):
    assert look() == []
    assert look("HuggingFaceH4/MATH-500", question="How many?") == []
    assert look("searchR1_nq", {"target": ["Paris"]}, "Where?") == []


@pytest.mark.parametrize(
    ("found", "value", "fix"),
    [
        ({"form": "box"}, r"gives \boxed{72}, the ground truth", "set ++mas.workflow.args.form=hashes"),
        ({"team": "ensemble"}, "no reward", "set ++mas.workflow.args.score=math, which reads this form"),
        ({"source": "apps", "truth": "{}", "question": "Write"}, "scorer of 'apps'", "custom_reward_function"),
        ({"question": "?", "function": "def score(**row): return 0"}, "mine.py gives", "for this form"),
        ({"source": "mine"}, "'mine'", "set reward.custom_reward_function.path"),
        ({"truth": None}, "has no ground truth in row 1", "write reward_model"),
        ({"score": "math", "form": "hashes", "truth": "6 x 12\n#### 72"}, "is '6 x 12", "write the answer alone"),
    ],
)  # fmt: skip
def test_a_right_answer_that_would_get_no_reward_is_refused_with_what_would(look, found, value, fix):
    (first, *_) = look(**found)
    assert value in first[0] and fix in first[1] and not first[2]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("def score(prompts, completions, **more): return 1.0", "missing 2 required positional arguments"),
        (
            "def score(solution_str, **row): return 1.0 if solution_str == '72' else None",
            "NoneType",
        ),
        ("def score(**row): return {'reward': 1.0}", "KeyError: 'score'"),
        ("def score(**row): return -float('inf')", "the score -inf is no finite number"),
        ("def score(extra_info, **row): return extra_info['difficulty']", "KeyError: 'difficulty'"),
        ("async def score(solution_str, **row): return float(len(solution_str))", None),
        ("def score(**row): return 0.0", "rewards [0.0] for any reply that was tried"),
    ],
)
def test_a_reward_function_is_tried_where_the_form_of_an_answer_is_not_known(look, function, value):
    found = look(team="single", source="mine", question="How many?", function=function)
    assert len(found) == bool(value) and all(value in one[0] for one in found)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("def score(**row): return 1.0", "mine.py: rewards [1.0] for any reply"),
        ("import random\ndef score(**row): return random.random()", "for the same replies"),
        ("import random\ndef score(**row): return 1 + random.random()", "for the same replies"),
        ("def score(solution_str, **row): return 2.0 if solution_str else 1.0", None),
        ("def score(solution_str, ground_truth, **row): return -(solution_str == ground_truth)", "less than others"),
    ],
)
def test_a_reward_that_is_not_of_the_reply_is_warned_of(look, function, value):
    for _ in range(2):  # It is not remembered as accepted.
        found = look(team="single", source="mine", question="How many?", function=function)
        assert len(found) == bool(value) and all(value in one[0] and one[2] for one in found)


def test_a_reward_function_is_tried_on_a_later_row_that_lacks_a_field(look):
    function = "def score(extra_info, solution_str, **row): return len(solution_str) + extra_info['level'] * 1.0"
    more = {"team": "single", "source": "mine", "question": ["How many?"] * 99, "function": function}
    assert look(**more, extras=[{"level": 1}]) == []
    ((value, *_),) = look(**more, extras=[{"level": 1}] * 98 + [{"level": None}])
    assert "TypeError" in value


def test_a_ground_truth_of_another_kind_than_verls_scorer_reads_is_refused(look):
    assert "TypeError" in look("searchR1_nq", "Paris", "Where?", "single")[0][0]


def test_a_ground_truth_that_is_a_solution_is_refused_where_verl_compares_it(look):
    refused = look(team="single", truth="6 x 12\n#### 72")
    assert len(refused) == 1 and "is '6 x 12" in refused[0][0], refused


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda answer: 1.0, "TypeError"),
        (lambda truth, answer: truth["value"], "TypeError"),
        (lambda truth, answer: 0.0, "no reward"),
        (lambda truth, answer: 100.0, "is not within 0 and 1"),
        (lambda truth, answer: float(truth == answer), None),
        (lambda truth, answer: None, None),
    ],
)
def test_the_ground_truth_is_right_for_a_grader_of_the_user(look, function, value, monkeypatch):
    monkeypatch.setattr(GRADERS, "find", lambda name, setting: Grader(function))
    found = look(question="How many?", score="mine")
    assert len(found) == bool(value) and all(value in one[0] for one in found)


def test_different_tasks_with_one_ground_truth_are_warned_of(look):
    ((value, _, warned),) = look(question=[f"How many are {number}?" for number in range(9)])
    assert "have one ground truth, '72'" in value and warned


def test_every_row_that_is_looked_at_has_a_ground_truth(look):
    for later in (None, ""):
        ((value, *_),) = look(question=["How many?", "How few?"], later=later)
        assert value.endswith("rows.parquet has no ground truth in row 2")


def test_an_answer_longer_than_a_reply_may_be_is_refused(make, letters, tmp_path):
    row = {"data_source": "openai/gsm8k", "prompt": MESSAGES, "reward_model": {"ground_truth": "72" * 40}}
    files(tmp_path, {"rows.parquet": [row]})
    rows = {f"data__{name}_files": str(tmp_path / "rows.parquet") for name in ("train", "val")}
    config = make(actor_rollout_ref__model__path=str(letters / "model"), data__max_response_length=80, **rows)
    run = Run.of(config)
    first, *_ = check_answers(run, resolve(run.mas.workflow))
    assert "has 8" in first.value and "tokens" in first.value and "at most data.max_response_length=80" in first.rule


def test_a_form_is_named_only_if_the_scorer_rewards_it(look):
    (refused,) = look(form="tag")
    assert "form=hashes" in refused[1] and "form=box" not in refused[1]


def test_a_task_that_asks_for_another_form_than_the_team_is_warned_of(look):
    ((value, fix, warned),) = look(score="math")
    assert "asks for ####" in value and fix.endswith("form=hashes") and warned
    assert look(score="math", form="hashes") == [] == look(score="math", question="How many?")


@pytest.mark.parametrize(
    "function",
    [
        "def score(solution_str, **row): return {'score': 2 * ('#### 72' in solution_str) - 1}",
        "async def score(solution_str, **row): return float(solution_str.endswith('72'))",
    ],
)
def test_a_reward_function_of_the_users_scores_the_ground_truth_too(look, function):
    assert look(function=function) == []


def test_a_reward_function_that_a_team_never_calls_is_warned_of(look):
    ((value, fix, warned),) = look(function="def score(**row): return 1", score="math", form="hashes")
    assert value.endswith("mine.py") and "score=verl" in fix and warned


@pytest.mark.parametrize("wrong", ["return None", "raise KeyError('answer')"])
def test_a_reward_function_that_is_wrong_is_refused(look, wrong):
    ((value, _, warned),) = look(function=f"def score(**row): {wrong}")
    assert "Error" in value and not warned


def test_a_reward_function_that_fails_here_is_warned_of(look):
    ((value, _, warned),) = look(function="def score(**row): raise OSError('no judge')")
    assert "OSError: no judge" in value and warned


def test_what_was_rewarded_is_not_asked_again_until_something_changes(look, tmp_path, monkeypatch):
    monkeypatch.setattr("verl_mas.checks.verl.remembered._remembers", lambda: True)
    counted = "def score(**row):\n    print(file=open({!r}, 'a')); return float('7' in row['solution_str'])"
    calls = tmp_path / "calls"
    lines = []
    for truth in ("7", "7", "17"):
        assert look(function=counted.format(str(calls)), truth=truth, question="How many?") == []
        lines.append(len(calls.read_text()))
    assert lines[0] == lines[1] < lines[2]
