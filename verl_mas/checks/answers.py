"""Checks that a right answer can be rewarded: the run's grader or reward function scores the ground truth of the first
row, written in the form that the prompt asks for."""

import asyncio
import inspect
import io
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import cast

from omegaconf import DictConfig

from verl_mas.checks.data import FirstRows, sound_rows, truth_of
from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.refusals import Problem, as_refusal, user_code
from verl_mas.checks.session import Played
from verl_mas.config.registry import nearest
from verl_mas.environment.grading.forms import FORMS, MARKS
from verl_mas.environment.grading.grader import Grader
from verl_mas.environment.grading.qa import golden_answers
from verl_mas.errors import ConfigError, ConfigWarning, DataError, ForeignError, MasError, foreign
from verl_mas.verl_.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.types import Fields
from verl_mas.workflow import Codec, Malformed
from verl_mas.workflow.task import text_of
from verl_mas.workflows._graded import WithVerlOrGrader

WRONG = "qzxjvk"
FORM = "mas.workflow.args.form"
GPU = re.compile(r"\bcuda\b|device_map|\bvllm\b|\bsglang\b")
# Errors in the code of a reward function. Any other error may mean that a package, GPU or server is missing here.
MISTAKES = (TypeError, AttributeError, LookupError, NameError, ValueError, SyntaxError, ArithmeticError)
PARAMETERS = "data_source, solution_str, ground_truth and extra_info"


def check_rewards(run: ExaminedRun, played: Played | None) -> Iterator[Problem]:
    """Check the reward manager, and that the ground truth of each data source gets a reward. `played`: the session that
    was played, if the run has a team."""
    config = run.config
    path = str(config.reward.custom_reward_function.path or "")
    yield from _reward_manager(config)
    if path and Path(path).is_file() and GPU.search(Path(path).read_text(errors="replace")):
        reason = "Ray hides GPUs from reward workers: a model on CUDA fails at the first reward (verl#2416, verl#2042)"
        fix = "set reward.reward_model, or let the function ask a server of its own"
        yield ConfigWarning(f"reward.custom_reward_function.path={path} names CUDA or an engine", reason, fix)
    graded = run.workflow if run.mode and isinstance(run.workflow, WithVerlOrGrader) else None
    grader = graded.optional_grader() if graded else None
    by_verl = run.mode is None or grader is not None or (played is not None and played.scored_by_verl)
    if not by_verl or config.reward.reward_manager.source != "register" or config.reward.reward_model.enable:
        return
    unlabelled = graded is not None and not graded.needs_labels
    sources = set[object]()
    for first in sound_rows(config):
        source = first.row.get(DATA_SOURCE)
        if source not in sources and (first.validation or not unlabelled):
            sources.add(source)
            yield from _scored(run, first, grader, path)


def _reward_manager(config: DictConfig) -> Iterator[Problem]:
    """Construct verl's reward manager as the run does, because its constructor may refuse its settings: verl#1317,
    PRIS-CV/MedReasoner#2."""
    manager = config.reward.reward_manager
    if manager.source != "register" or manager.name in ("naive", "remote"):
        return
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.reward import get_custom_reward_fn

    value = f"reward.reward_manager.name={manager.name}"
    if manager.name not in REWARD_MANAGER:
        rule = "with reward.reward_manager.source=register it is a reward manager of verl"
        yield ConfigError(value, rule=rule, fix=nearest(str(manager.name), list(REWARD_MANAGER)))
        return
    if not REWARD_MANAGER[manager.name].__module__.startswith("verl."):
        return  # A user's manager may read the tokenizer, which is not loaded here.
    try:
        with foreign():
            function = get_custom_reward_fn(config)
            REWARD_MANAGER[manager.name](config=config, tokenizer=object(), compute_score=function)  # type: ignore[arg-type]
    except ForeignError as failed:
        yield ConfigError(value, rule=f"verl makes it when the run starts: {failed.error}", fix="correct its settings")


def _scored(run: ExaminedRun, first: FirstRows, grader: Grader | None, custom: str) -> Iterator[Problem]:
    source, truth = first.row.get(DATA_SOURCE), truth_of(first.row)
    form = run.workflow.answer_form(source if isinstance(source, str) else None) if run.mode else None
    name = f"the grader of {run.mas.workflow.name}" if grader else custom or f"verl's scorer of {source!r}"
    where = f"the first row of {first.file}"
    if truth is None or (source is None and grader is None):
        lacking = "ground_truth in reward_model" if truth is None else DATA_SOURCE
        rule, fix = "the scorer of the answers reads it", f"write {lacking} into every row: `verl-mas data rows` does"
        yield ConfigError(f"{where} has no {lacking}", rule=rule, fix=fix)
        return
    score: Callable[[str], float]
    replies = _replies(truth, form)
    try:
        with user_code(run.mas.workflow.check_timeout_s):
            if grader and form:
                score = partial(_grade, grader, truth, form)
            else:
                score = partial(score_by, _function(run.config), first.row)
            nothing = score("")
            rewards = {written: score(text) for written, text in replies.items()}
    except MasError as error:
        yield _refused(error, name, first)
        return
    right = [written for written, reward in rewards.items() if reward > nothing]
    asked = _asked(run, first)
    wanted = next((written for written, each in FORMS.items() if each == form), "right" if form else asked)
    if wanted and wanted in rewards and wanted not in right and (form or (right and not custom)):
        value = f"{name} gives {replies[wanted]:.120}, the ground truth of {where}, no reward"
        rule = "answers are asked for in that form, so no session would be rewarded"
        fixes = [f"set ++{FORM}={each}" for each in right if form and hasattr(run.workflow, "form")]
        fixes += [f"ask for {mark} in the prompts" for each, mark in MARKS.items() if each in right]
        fixes += ["write a reward.custom_reward_function that reads this form"]
        yield ConfigError(value, rule=rule, fix=", or ".join(fixes))


def _asked(run: ExaminedRun, first: FirstRows) -> str | None:
    """Return the answer form that the row's prompt asks for; None if the prompt names no form or several forms."""
    question = " ".join(text_of(message) for message in first.row[str(run.config.data.prompt_key)])
    asked = [name for name, mark in MARKS.items() if mark in question]
    return asked[0] if len(asked) == 1 else None


def _replies(truth: object, form: Codec[str] | None) -> dict[str, str]:
    """Map each form to the ground truth written in that form. A form that cannot hold the ground truth is skipped, such
    as a one-line form for a ground truth of two lines."""
    try:
        answer = golden_answers(truth)[0]
    except DataError:
        answer = str(truth)
    found: dict[str, str] = {}
    for name, each in (*FORMS.items(), *([("right", form)] if form and form not in FORMS.values() else [])):
        with suppress(MasError):
            found[name] = each.render(answer)
    return found


def _refused(error: MasError, name: str, first: FirstRows) -> Problem:
    cause, source = error.__cause__, first.row.get(DATA_SOURCE)
    if isinstance(cause, NotImplementedError) and name.startswith("verl's"):
        rule = "verl's own reward function scores by the name of the data source, and has no rule for this one"
        fix = "set reward.custom_reward_function.path to a file with a function of yours, or correct the column"
        return ConfigError(f"{first.file}, column {DATA_SOURCE!r}, first row: {source!r}", rule=rule, fix=fix)
    value = f"{name} on the first row of {first.file}: {as_refusal(error).value}"
    if isinstance(cause, MISTAKES):
        rule = f"it takes {PARAMETERS} by name, and gives one finite number, or a dictionary with a score"
        return ConfigError(value, rule=rule, fix="correct it")
    # Only warn, because the function may need a package, a GPU or a server that only the run's machines have.
    reason = "not checked: whether it rewards a right answer"
    return ConfigWarning(value, reason, "correct it, or check on that machine")


def _function(config: DictConfig) -> Callable[..., object]:
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    return get_custom_reward_fn(config) or default_compute_score


def score_by(function: Callable[..., object], row: Fields, reply: str) -> float:
    # Some of verl's reward functions print their input.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        result = function(
            data_source=row.get(DATA_SOURCE),
            solution_str=reply,
            ground_truth=row[REWARD_MODEL][GROUND_TRUTH],
            # verl's managers add the first two keys.
            extra_info={"num_turns": 2, "rollout_reward_scores": {}, **(row.get(EXTRA_INFO) or {})},
        )
        if inspect.iscoroutinefunction(function):
            result = asyncio.run(cast(Coroutine[None, None, object], result))
    score = result["score"] if isinstance(result, Mapping) else result
    if isinstance(score, str | list | tuple) or not math.isfinite(float(cast(float, score))):
        raise ValueError(f"the score {score!r} is no finite number")
    return float(cast(float, score))


def _grade(grader: Grader, truth: object, form: Codec[str], reply: str) -> float:
    """Grade a reply. An answer that the grader cannot check counts as right."""
    answer = form.parse(reply)
    grade = 0.0 if isinstance(answer, Malformed) else asyncio.run(grader(grader.read(truth), answer))
    return 1.0 if grade is None else grade
