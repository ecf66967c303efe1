"""Exact match and F1 of short answers, with the normalisation of SQuAD that the search papers use."""

import re
import string
from collections import Counter
from collections.abc import Mapping

from verl_mas.environment.grading.grader import UNKNOWN, unknown
from verl_mas.errors import DataError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Normalise a text: lower case, without punctuation, articles and repeated whitespace."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def golden_answers(truth: object) -> list[str]:
    """List the accepted answers (at least one) of a ground truth, which is a string, a list of strings, or Search-R1's
    `{"target": [...]}`."""
    if unknown(truth):
        return [UNKNOWN]
    answers = truth["target"] if isinstance(truth, Mapping) and "target" in truth else truth
    if hasattr(answers, "tolist"):
        answers = answers.tolist()
    answers = [answers] if isinstance(answers, str) else answers
    if (
        not isinstance(answers, list | tuple)
        or not all(isinstance(a, str) for a in answers)
        or not "".join(answers).strip()
    ):
        rule = "a question needs at least one accepted answer: a text, or a list of texts"
        fix = "prepare the data with `verl-mas data search`"
        raise DataError(f"ground truth {truth!r}", rule=rule, fix=fix)
    return list(answers)


def exact_match(answer: str, golden: list[str]) -> float:
    return float(any(normalise(answer) == normalise(accepted) for accepted in golden))


def f1(answer: str, golden: list[str]) -> float:
    """Return the highest F1 of the words over all accepted answers."""
    return max(_f1(normalise(answer).split(), normalise(accepted).split()) for accepted in golden)


def _f1(answer: list[str], golden: list[str]) -> float:
    shared = (Counter(answer) & Counter(golden)).total()
    if not answer or not golden:
        return float(answer == golden)
    return 2 * shared / (len(answer) + len(golden))
