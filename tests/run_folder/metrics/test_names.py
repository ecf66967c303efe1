"""The page of metrics, and the names in it."""

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import verl

from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.run_folder.metrics.names import key_of_policy, policies_in
from verl_mas.run_folder.metrics.table import METRICS, TO_WATCH, described

ROOT = Path(__file__).parents[3]
PLACEHOLDER = re.compile(r"<\w+>")


def examples(pattern: str) -> Iterator[str]:
    """Yield the names for which a pattern stands. They keep its placeholders."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    yield from map("".join, itertools.product(*choices))


@cache
def written() -> frozenset[str]:
    """Collect the parts between slashes of all strings in the code that logs metrics."""
    ours = [path for path in (ROOT / "verl_mas").rglob("*.py")]
    folder = Path(verl.__file__).parent
    places = ("trainer/**/*.py", "workers/**/*.py", "utils/debug/*.py", "utils/*.py")
    theirs = [path for place in places for path in folder.glob(place)]
    nodes = (node for path in [*ours, *theirs] for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return frozenset(part for text in texts if len(text) < 100 for part in re.split("[/@]", text))


def is_written(part: str) -> bool:
    """Whether the code has this part as one string, or as two strings that it joins."""
    return any(part[:i] in written() and part[i:] in written() for i in range(len(part) + 1))


def test_every_part_of_a_described_name_is_in_the_code_that_logs_it():
    names = [PLACEHOLDER.sub("", name) for metric in METRICS for name in examples(metric.pattern)]
    parts = {part for name in names for part in re.split("[/@]", name) if part}
    assert [part for part in parts if not is_written(part)] == []


def test_a_name_is_described_by_its_own_row():
    stands_for = {"<n>": "4", "<k>": "2", "<s>": "8"}
    for metric in METRICS:
        for name in examples(metric.pattern):
            key = PLACEHOLDER.sub(lambda found: stands_for.get(found[0], "it"), name)
            assert described(key) is metric, name


def test_names_of_sources_and_of_numbers_may_have_slashes():
    assert described("val-core/openai/gsm8k/pass@16").pattern == "val-core/<source>/pass@<k>"
    assert described("session/tool/calls/mean").pattern == "session/<name>/mean"
    assert described("agent/solver/made_up") is None and described("mas/solver/acts") is None
    assert [metric.pattern for metric in TO_WATCH][:2] == ["agent/<agent>/reward/score", "agent/<agent>/advantage/zero"]
    assert described("policy/main/actor/lr").pattern == "actor/lr"
    assert described("val-agent/solver/cut").pattern == "val-agent/<agent>/cut"


def test_a_policys_number_is_read_the_same_way_however_many_policies_there_are():
    only = {"policy/main/rows/real": 8, "actor/lr": 0.1}
    names = (f"policy/{name}/{key}" for name in ("solver", "verifier") for key in ("rows/real", "actor/grad_norm"))
    two = dict(zip(names, (16, 1.0, 16, 2.0), strict=True))
    assert key_of_policy(only, "main", "actor/lr") == "actor/lr"
    assert key_of_policy(only, "other", "actor/lr") == "policy/other/actor/lr"
    assert two[key_of_policy(two, "verifier", "actor/grad_norm")] == 2.0
    assert key_of_policy(two | only, "solver", "actor/lr") == "policy/solver/actor/lr"
    assert policies_in(two) == ["solver", "verifier"] and metric_names.agents_in({"agent/a/acts": 1}) == ["a"]
