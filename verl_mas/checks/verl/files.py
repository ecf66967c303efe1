"""What is wrong with the data files of a run."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cache
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.rows import (
    ROLES,
    SETTINGS,
    TRUTH,
    FirstRow,
    as_text,
    first_row,
    many_rows,
    no_mappings,
    no_prompt,
    other_roles,
    paths_of,
    prompt_fault,
    read_by_user_code,
    scored_by,
    sound_rows,
    texts_of,
    without_text,
)
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.sources import find
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    import pyarrow


# What the rollout adds to a row, and what verl's rollout takes from a batch.
RESERVED = frozenset(
    "prompts responses response_mask input_ids attention_mask position_ids rollout_log_probs rm_scores num_turns "
    "extra_fields reward_extra_info metrics validate __rollout_n__ __do_sample__ uid session_id global_steps".split()
)


SHORT = 64  # Letters of a ground truth that is an answer, and not tests of a program
NOTHING = "nan", "NaN", "None", "null"  # As texts, which tables without an entry become
ANSWER = r"\b(?:answer|solution|result)\W*(?:is\W*)?"
MEDIA = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}


def check_data(config: DictConfig, *, scored: bool) -> Iterator[Problem]:
    """`scored`: whether verl's reward manager scores every session; else the run may have rewards of its own."""
    trained, key = set[str](), str(config.data.prompt_key)
    for setting in () if read_by_user_code(config) else SETTINGS:
        found = [first_row(config, setting, path) for path in paths_of(config, setting)]
        if not found:
            fix = f"set {setting}=<file>.parquet"
            yield ConfigError(f"{setting}=[]", rule="verl reads at least one file", fix=fix)
        read = [first for first in found if isinstance(first, FirstRow)]
        yield from (problem for problem in found if not isinstance(problem, FirstRow))
        for first in read:
            yield from _columns(config, first, scored=scored)
            yield from _repeated(first, key)
        yield from _other_types(read)
        if setting == SETTINGS[0]:
            yield from _batches(config, found)
            for first in (first for first in read if all(_extra(row).get("split") == "test" for row in first.sample)):
                reason = f"extra_info.split is test in each of its first {len(first.sample)} rows"
                yield ConfigWarning(f"{setting}={first.file}", reason, f"set {setting} to the rows of the training")
            trained = {as_text(row, key) for first in read for row in many_rows(first)}
            has_truth = any(scored_by(first.row)[TRUTH] is not None for first in read)
        else:
            yield from _trained_on(read, trained, key)
            for first in (first for first in read if has_truth and scored_by(first.row)[TRUTH] is None):
                value, reason = f"{first.file} has no {TRUTH} in its first row", f"the rows of {SETTINGS[0]} have one"
                yield ConfigWarning(value, reason, "write it into every row")


def _extra(row: Fields) -> Fields:
    return extra if isinstance(extra := row.get(EXTRA_INFO), dict) else {}


def _asked(row: Fields, key: str) -> list[object]:
    """The prompt, and what else a workflow may tell of a task."""
    return [row.get(key), {name: value for name, value in _extra(row).items() if name not in ("index", "split")}]


def _repeated(first: FirstRow, key: str) -> Iterator[ConfigWarning]:
    rows = [as_text(row, key) for row in first.sample]
    answers = defaultdict[str, set[str]](set)
    for row in many_rows(first):
        answers[str(_asked(row, key))].add(str(scored_by(row)[TRUTH]))
    if len(rows) > 1 and len({*rows}) == 1:
        value = f"each of the first {len(rows)} rows of {first.file} is the same"
        yield ConfigWarning(value, "the run trains on one task alone", "write each task once")
    elif count := sum(len(truths) > 1 for truths in answers.values()):
        value = f"{count} of {len(answers)} tasks of {first.file} have rows with other answers"
        yield ConfigWarning(value, "a model cannot tell them apart", "write each task once, whole")
    known = [(str(row.get(key)), str(scored_by(row)[TRUTH])) for row in first.sample]
    if len({*known}) > 1 and all(re.search(f"{ANSWER}{re.escape(truth)}(?!\\w)", text, re.I) for text, truth in known):
        value = f"each of the first {len(rows)} rows of {first.file} has its answer in its prompt"
        yield ConfigWarning(value, "copying it is learnt", "leave it out of the prompt")
    for name in ("index", "seed") if len(rows) > 1 and len({*rows}) > 1 else ():
        values = {str(_extra(row).get(name)) for row in first.sample}
        if len(values) == 1 and values != {"None"}:
            value = f"extra_info.{name} is {min(values)} in each of the first {len(rows)} rows of {first.file}"
            yield ConfigWarning(value, "what a session draws depends on it", "number the rows")


def _trained_on(validated: Iterable[FirstRow], trained: Set[str], key: str) -> Iterator[ConfigWarning]:
    for first in validated:
        rows = many_rows(first)
        if count := sum(as_text(row, key) in trained for row in rows):
            value = f"{count} of {len(rows)} rows of {first.file} are among those of {SETTINGS[0]}"
            reason = "the validation then measures tasks that are trained on"
            yield ConfigWarning(
                value, reason, f"leave them out of one of the two, or set {SETTINGS[1]} to another file"
            )


def _other_types(found: Sequence[FirstRow]) -> Iterator[ConfigError]:
    rule = "verl joins the files of a setting, and a column has one type"
    for first, other in pairwise(found):
        both = sorted(first.types.keys() & other.types.keys())
        different = [leaf for leaf in both if first.types[leaf] != other.types[leaf]]
        for leaf in different:
            value = f"{leaf} is {first.types[leaf]} in {first.file}, and {other.types[leaf]} in {other.file}"
            yield ConfigError(value, rule=rule, fix="write both files with the same types")
        schemas = [one.fields for one in (first, other) if one.fields]
        if not different and len(schemas) > 1 and (why := _unjoined(schemas)):
            value = f"{first.file} and {other.file}: {why:.300}"
            yield ConfigError(value, rule=rule, fix="write both files with the same columns and fields")


def _unjoined(schemas: Iterable[pyarrow.Schema]) -> str:
    """Why `datasets`, with which verl joins the files, does not."""
    from datasets import Dataset, Features, concatenate_datasets

    try:
        # A file without rows is left out.
        rows = [
            Dataset.from_dict({name: [None] for name in one.names}, Features.from_arrow_schema(one)) for one in schemas
        ]
        concatenate_datasets(rows)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def _columns(config: DictConfig, first: FirstRow, *, scored: bool) -> Iterator[Problem]:
    key = str(config.data.prompt_key)
    if key not in first.columns:
        value = f"{first.file} has no column {key!r}"
        fix = f"set data.prompt_key; {nearest(key, first.columns)}"
        yield ConfigError(value, rule="data.prompt_key names the column of the prompts", fix=fix)
    else:
        where = f"{first.file}, column {key!r}"
        faults = (prompt_fault(f"{where}, row {number}", row.get(key)) for number, row in enumerate(first.sample, 1))
        yield from islice(filter(None, chain(faults, _later(first, key, where))), 1)
    for name in sorted(RESERVED & {*first.columns}):
        rule = "a row of the training has a field of this name, which the column would replace"
        yield ConfigError(f"{first.file}, column {name!r}", rule=rule, fix="rename the column")
    for name in sorted({"tools_kwargs", "interaction_kwargs"} & {*first.columns}):
        reason, fix = f"verl reads {name} in {EXTRA_INFO}, and replaces the column", f"write it into {EXTRA_INFO}"
        yield ConfigWarning(f"{first.file}, column {name!r}", reason, fix)
    for name in (name for name, usual in MEDIA.items() if config.data[name] not in (usual, *first.columns)):
        value = f"data.{name}={config.data[name]}, and {first.file} has no such column"
        yield ConfigWarning(value, "no row then has one", "correct the name")
    for name in no_mappings(first.row):
        value = f"{first.file}, column {name!r}, first row: {repr(first.row[name])[:120]}"
        yield ConfigError(value, rule="it is a mapping, or null", fix="write the column again, or leave it out")
    for leaf, own in scored_by(first.row).items():
        count = first.nulls.get(leaf)
        if own not in (None, "") and (count or leaf in first.empty):
            reason = "the first row has one, and a session without it has nothing to be scored by"
            value = f"{first.file}: {f'{count} rows have' if count else 'a row has'} no {leaf}"
            yield ConfigWarning(value, reason, "write it into every row")
    truth = scored_by(first.row)[TRUTH]
    if isinstance(truth, str) and len(truth) < SHORT and (truth != truth.strip() or truth in NOTHING):
        value, reason = f"{first.file}, first row: the {TRUTH} is {truth!r}", "no answer is the same"
        yield ConfigWarning(value, reason, "write the answer alone, without blanks at its ends")
    if lacking := list(_reward_columns(config, first.row)):
        value, rule = f"{first.file} has no {' and no '.join(lacking)} in its first row", "verl's reward manager reads"
        fix = "write the column, or set reward.reward_manager.source=importlib with a reward manager of yours"
        if scored:
            yield ConfigError(value, rule=f"{rule} it", fix=fix)
        else:
            reason = f"{rule} it in every session that the workflow does not reward itself"
            yield ConfigWarning(value, reason=reason, fix=fix)


def _later(first: FirstRow, key: str, where: str) -> Iterator[Problem]:
    yield from first.later
    for leaf in (leaf for leaf in first.types if leaf.startswith(f"{key}.") and leaf.endswith(".role")):
        if first.nulls.get(leaf):
            yield no_prompt(f"{where}: {first.nulls[leaf]} rows or messages without a role")
        if others := texts_of(first.file, leaf) - ROLES:
            yield other_roles(where, others)
    # A message may have no text in every row, or where it calls tools.
    silent = any(leaf.startswith(f"{key}.") and leaf.endswith(".content") for leaf in {*first.empty, *first.nulls})
    usual = re.search(r"'content': (''|None)", str(first.sample)) if silent else None
    if silent and not usual and not any(".tool_calls." in leaf for leaf in first.types):
        yield without_text(f"{where}: a message")


def _reward_columns(config: DictConfig, row: Fields) -> Iterator[str]:
    """The columns that a reward manager of verl reads, of which the row has none."""
    if config.reward.reward_manager.source != "register":
        return
    if row.get(DATA_SOURCE) is None:
        yield f"column {DATA_SOURCE!r}"
    truth = row.get(REWARD_MODEL)
    if not isinstance(truth, dict) or GROUND_TRUTH not in truth:
        yield f"column {REWARD_MODEL!r} with a {GROUND_TRUTH!r}"


def check_scored(config: DictConfig) -> Iterator[ConfigError]:
    """Whether verl's own reward function, where it scores the sessions, knows the data sources of the first rows."""
    own = ("reward.custom_reward_function.path", "reward.reward_model.enable")
    if config.reward.reward_manager.source != "register" or any(OmegaConf.select(config, key) for key in own):
        return
    names, prefixes = sources_of_verl()
    for first in sound_rows(config):
        source = first.row.get(DATA_SOURCE)
        if isinstance(source, str) and source not in names and not source.startswith(prefixes):
            yield ConfigError(
                f"{first.file}, column {DATA_SOURCE!r}, first row: {source!r}",
                rule="verl's own reward function scores by the name of the data source, and has no rule for this one",
                fix=f"set reward.custom_reward_function.path to a file with a function of yours; "
                f"{nearest(source, names)}",
            )


@cache
def sources_of_verl() -> tuple[list[str], tuple[str, ...]]:
    """The names that verl's reward function compares a data source with, and the prefixes."""
    function = find("verl.utils.reward_score:default_compute_score")
    nodes = list(ast.walk(function.node)) if function else []
    compared = (node for node in nodes if isinstance(node, ast.Compare))
    started = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".startswith"))
    return _texts(compared), tuple(_texts(started))


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    constants = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [each.value for each in constants if isinstance(each.value, str)]


def _batches(config: DictConfig, found: list[FirstRow | Problem]) -> Iterator[Problem]:
    known = [first.total for first in found if isinstance(first, FirstRow)]
    if len(known) < len(found) or config.trainer.val_only:
        return
    most = int(config.data.get("train_max_samples") or -1)
    total = min(sum(known), most) if most > 0 else sum(known)
    size, epochs, steps = config.data.train_batch_size, config.trainer.total_epochs, config.trainer.total_training_steps
    if total < size:
        value = f"{total} rows in data.train_files with data.train_batch_size={size}"
        rule = "a training step takes a whole batch of rows"
        yield ConfigError(value, rule=rule, fix=f"set data.train_batch_size to at most {total}, or give more rows")
    last = epochs * (total // size)
    enough = -(-(steps or 0) * epochs // max(1, last))
    yield from combinations("batches", config, last=last, total=total, enough=enough)
