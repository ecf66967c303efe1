import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.utils.reward_score import default_compute_score

from verl_mas.environment.grading.forms import FORMS, MARKS, Hashes, form_of_verl
from verl_mas.workflow import Malformed

# Data sources that verl's own function names, without those of programs, and without geometry3k, which needs a package.
SOURCE = inspect.getsource(default_compute_score)
PROGRAMS = {"codecontests", "apps", "codeforces", "taco", "hiyouga/geometry3k"}
LISTS = re.findall(r"data_source (?:==|in) (\[[^\]]*\]|\"[^\"]*\")", SOURCE)
NAMES = {name for listed in LISTS for name in re.findall(r"\"([^\"]+)\"", listed)} - PROGRAMS
PREFIXES = re.findall(r"startswith\(\"([^\"]+)\"\)", SOURCE)


@pytest.mark.parametrize("source", [*sorted(NAMES), *(f"{prefix}2024" for prefix in PREFIXES)])
def test_verls_own_scorer_of_a_data_source_rewards_the_form_that_is_chosen_for_it(source):
    truth = {"target": ["72"]} if source.startswith("searchR1_") else "72"
    results = {name: default_compute_score(source, form.render("72"), truth) for name, form in FORMS.items()}
    scores = {name: result["score"] if isinstance(result, dict) else result for name, result in results.items()}
    assert [name for name, score in scores.items() if score == 1] == [form_of_verl(source)]


@given(st.text(max_size=40))
def test_an_answer_after_hashes_is_read_as_it_was_written_and_any_text_is_parsed(text):
    parsed = Hashes().parse(text)
    assert isinstance(parsed, Malformed) or Hashes().parse(Hashes().render(parsed)) == parsed


def test_the_last_hashes_outside_the_thinking_count():
    replies = ["6 x 12\n#### 72", "#### 1\nno:\n####  2 ", "<think>#### 1</think>#### 3"]
    assert [Hashes().parse(reply) for reply in replies] == ["72", "2", "3"]
    assert all(isinstance(Hashes().parse(reply), Malformed) for reply in ["72", "####", "#### \n72", "<think>#### 72"])


def test_a_prompt_for_a_form_has_its_mark():
    assert all(MARKS[name] in form.prompt() and MARKS[name] in form.render("7") for name, form in FORMS.items())
