"""Whether an answer that is right can be rewarded: the ground truth of the first rows, in the form in which the team
answers, is scored by what scores the run."""

from __future__ import annotations

import asyncio
import inspect
import io
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache, partial
from itertools import islice
from typing import TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.files import SHORT, check_scored
from verl_mas.checks.verl.functions import custom_function, file_of_user
from verl_mas.checks.verl.model_folder import ChatTemplate
from verl_mas.checks.verl.refusals import Problem, as_refusal, user_code
from verl_mas.checks.verl.remembered import accepted_before, remember
from verl_mas.checks.verl.rows import TRUTH, FirstRow, other_rows, scored_by, sound_rows
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning, DataError, MasError
from verl_mas.grading.forms import FORMS, MARKS, AnswerForm
from verl_mas.grading.grader import Grader
from verl_mas.grading.qa import golden_answers
from verl_mas.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.verl_.types import Fields
from verl_mas.workflow import Codec, Malformed, Workflow
from verl_mas.workflow.task import text_of
from verl_mas.workflows._graded import WithVerlOrGrader

T = TypeVar("T")
FORM = "mas.workflow.args.form"
FEW = 8  # Tasks that may have one answer by chance
SOME = 16  # Rows whose ground truth is scored
WRONG = "qzxjvk"
OWN = ""  # The reply that is right in the team's form, or the ground truth as it is
# Of a function itself, not of what it reaches.
MISTAKES = (TypeError, AttributeError, LookupError, NameError, ValueError)


def check_answers(run: Run, workflow: Workflow) -> Iterator[Problem]:
    """Teams whose sessions verl scores; the others grade while they run, with a form that their own codec reads."""
    by_verl = workflow.scored_by_verl
    if by_verl:
        yield from check_scored(run.config)
    manager, custom = run.config.reward, custom_function(run.config)
    by_function = manager.reward_manager.source == "register" and not manager.reward_model.enable
    seen = []
    for first in sound_rows(run.config):
        source, truth = first.row.get(DATA_SOURCE), scored_by(first.row)[TRUTH]
        form = workflow.answer_form(source if isinstance(source, str) else None)
        if source in seen:
            continue
        seen.append(source)
        if custom and form and not by_verl:
            value = f"reward.custom_reward_function.path={custom}"
            reason = f"{run.mas.workflow.name} grades its answers itself, and calls no reward function"
            fix = "remove it, or set ++mas.workflow.args.score=verl" if hasattr(workflow, "score") else "remove it"
            yield ConfigWarning(value, reason, fix)
            custom = ""
        compared = not custom and (form is not None or by_verl)
        if compared and isinstance(truth, str) and any(mark in truth for mark in MARKS.values()):
            value = f"the ground truth of the first row of {first.file} is {truth!r:.120}"
            rule = "an answer is compared with it, and this is a solution that has its answer marked"
            yield ConfigError(value, rule=rule, fix="write the answer alone into reward_model.ground_truth")
            continue
        if form is None:
            if by_function and (custom or by_verl) and truth is not None:
                yield from _scored(run, first, workflow, form)
            continue
        # Puzzles have an empty one in every row.
        none = (None,) if truth == "" else (None, "")
        lacking = [number for number, row in enumerate(first.sample, 1) if scored_by(row)[TRUTH] in none]
        if lacking:
            rule = "an answer is scored by comparing it with the ground truth"
            fix = f"write reward_model={{{GROUND_TRUTH}: ...}} in every row"
            yield ConfigError(f"{first.file} has no ground truth in row {lacking[0]}", rule=rule, fix=fix)
            continue
        yield from _too_long(run, first, form, truth)
        tasks = {str(row.get(str(run.config.data.prompt_key))) for row in first.sample}
        if len(tasks) > FEW and len({str(scored_by(row)[TRUTH]) for row in first.sample}) == 1:
            value = f"the first {len(tasks)} tasks of {first.file} have one ground truth, {truth!r:.120}"
            reason = "an agent is rewarded for this answer, whatever the task is"
            yield ConfigWarning(value, reason, "write the answer of each task into reward_model.ground_truth")
        scores = by_function if by_verl else isinstance(workflow, WithVerlOrGrader)
        refused = list(_scored(run, first, workflow, form)) if scores else []
        yield from refused or _other_form(run, first, workflow, form)


def check_rewarded(run: Run) -> Iterator[Problem]:
    """Of a run without a team: its reward function on the first rows."""
    manager = run.config.reward
    if manager.reward_manager.source == "register" and not manager.reward_model.enable:
        for first in sound_rows(run.config):
            yield from _scored(run, first, None, None)


def _too_long(run: Run, first: FirstRow, form: Codec[str], truth: object) -> Iterator[ConfigError]:
    """If no policy may write a reply as long as the answer."""
    with suppress(MasError):  # A truth that the form has no place for, which the scores tell.
        reply, lengths = form.render(golden_answers(truth)[0]), list[tuple[int, int]]()
        for view in map(run.view, run.trained):
            chat, limit = ChatTemplate.of_model(view.section("model")), int(view.value("rollout.response_length"))
            lengths.append(((chat and chat.length(reply, limit)) or 0, limit))
        if lengths and all(length > limit for length, limit in lengths):
            length, limit = min(lengths)
            value = f"{reply:.120}, the ground truth of the first row of {first.file}, has {length} tokens"
            rule = f"a reply has at most data.max_response_length={limit}, so none is right"
            yield ConfigError(value, rule=rule, fix="raise data.max_response_length")


def _scored(run: Run, first: FirstRow, workflow: Workflow | None, form: Codec[str] | None) -> Iterator[Problem]:
    """Without a form, which replies are right is not known; that each has a score is."""
    custom, graded = custom_function(run.config), None
    name = custom or f"verl's scorer of {first.row[DATA_SOURCE]!r}"
    if isinstance(workflow, WithVerlOrGrader) and (graded := workflow.optional_grader()):
        name, custom = f"the grader {workflow.score}", ""
    file = file_of_user(custom) if custom else None
    changed = file.stat().st_mtime_ns if file and file.is_file() else None
    rows = {1: first.row, **dict(islice(other_rows(first, str(run.config.data.prompt_key)).items(), SOME))}
    question = [name, OmegaConf.to_container(run.config.reward, resolve=True), changed, rows, repr(form)]
    # check_functions refuses a function without a file. A grader may be of a file that has changed.
    if (custom and changed is None) or (graded is None and accepted_before(question)):
        return
    truth, function = first.row[REWARD_MODEL][GROUND_TRUTH], cache(partial(_function, run.config))

    def score(row: Fields, reply: str) -> float:
        if graded and form:
            return _grade(graded, scored_by(row)[TRUTH], form, reply)
        return _score(function(), row, reply)

    try:
        reply = _right(first.row, form)[OWN]
        with user_code(run.mas.workflow.check_timeout_s):
            nothing, forms = score(first.row, ""), {**_right(first.row, None), OWN: reply}
            rewarded = [each for each, written in forms.items() if score(first.row, written) > nothing]
            right = OWN in rewarded or form is None
            replies = ["", WRONG, *forms.values()]
            wrong = score(first.row, WRONG)
            own = custom or (form is None and len(str(truth)) < SHORT)
            found = list(check_rewards(name, lambda reply: [score(first.row, reply)], replies, truth)) if own else []
            if not found and score(first.row, reply) < min(nothing, wrong):
                value = f"{name} gives {reply:.80}, the ground truth of the first row of {first.file}, less than others"
                found = [ConfigWarning(value, "a wrong reply gets more", "change the sign of the score")]
            found = found or list(_other_truths(name, first.file, rows, rewarded, form, score))
    except MasError as error:
        # It may need a package or a server of the run's machines.
        value = f"{name} on a row of {first.file}: {as_refusal(error).value}"
        refused = ConfigError(value, rule="it scores every session of the run", fix="correct it")
        unread = ConfigWarning(value, reason="not checked: whether it rewards a right answer", fix=refused.fix)
        yield refused if isinstance(error.__cause__, MISTAKES) else unread
        return
    if right:
        yield from found
        if not found:
            remember(question)
        return
    value = f"{name} gives {reply:.120}, the ground truth of the first row of {first.file}, no reward"
    rule = f"{run.mas.workflow.name} answers in that form, so no session would be rewarded"
    fixes = [f"set ++{FORM}={each}" for each in rewarded if each in FORMS] if hasattr(workflow, "form") else []
    fixes += ["set ++mas.workflow.args.score=math, which reads this form"] if hasattr(workflow, "score") else []
    fixes += ["write a reward.custom_reward_function for this form"]
    fix = "correct the grader, or the ground truth" if graded else ", or ".join(fixes)
    yield ConfigError(value, rule=rule, fix=fix)


def _right(row: Fields, form: Codec[str] | None) -> dict[str, str]:
    """The ground truth as a reply: in the form, or as it is and in every form."""
    truth = scored_by(row)[TRUTH]
    try:
        answer = golden_answers(truth)[0]
    except DataError:
        answer = str(truth)
    return {OWN: form.render(answer)} if form else {OWN: answer, **dict(in_every_form(answer))}


def _other_truths(
    name: str,
    file: str,
    rows: Mapping[int, Fields],
    rewarded: Sequence[str],
    form: Codec[str] | None,
    score: Callable[[Fields, str], float],
) -> Iterator[ConfigWarning]:
    """The first row whose ground truth gets no reward in the form in which that of the first row gets one."""
    for number, row in rows.items():
        nothing = score(row, "")
        reply = _right(row, form).get(rewarded[0]) if rewarded and scored_by(row)[TRUTH] not in (None, "") else None
        if reply is not None and score(row, reply) <= nothing:
            value = f"{name} gives {reply:.120}, the ground truth of row {number} of {file}, no reward"
            reason = "it rewards that of the first row in this form, and no session on this row would be rewarded"
            yield ConfigWarning(value, reason, "correct the ground truth, or what scores it")
            return


def check_rewards(
    what: str, score: Callable[[T], Sequence[float]], replies: Sequence[T], truth: object
) -> Iterator[ConfigWarning]:
    """Of a reward function and of a workflow: whether the rewards are of the replies, and of nothing else. `replies`:
    an empty one, a wrong one, and others, also with the ground truth."""
    first, again = ([[round(reward, 3) for reward in score(reply)] for reply in replies] for _ in range(2))
    if not all([*first, *again]):
        return  # A session failed, or verl scores it.
    if differs := next((pair for pair in zip(first, again, strict=True) if pair[0] != pair[1]), None):
        value = f"{what}: rewards {differs[0]} and {differs[1]} for the same replies"
        reason, fix = "agents are trained on a difference that is not theirs", "draw it by team.random(name)"
        yield ConfigWarning(value, reason, fix)
    elif max(first[0]) > 0 and first[1] < first[0] == max(first):
        value = f"{what}: rewards {first[0]} for empty replies, and no more for the ground truth"
        yield ConfigWarning(value, "agents then learn to say nothing", "compare the whole answer with the ground truth")
    elif all(each == first[0] for each in first) and (min(first[0]) > 0 or truth not in (None, "")):
        value = f"{what}: rewards {first[0]} for any reply that was tried, empty or with the ground truth"
        fix = "compute the reward of the replies"
        yield ConfigWarning(value, "rows of one reward have no advantage, so nothing is learnt", fix)


def in_every_form(answer: str) -> Iterator[tuple[AnswerForm, str]]:
    for name, form in FORMS.items():
        with suppress(MasError):  # A form may have no place for it, as one line has none for two.
            yield name, form.render(answer)


def _function(config: DictConfig) -> Callable[..., object]:
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    return get_custom_reward_fn(config) or default_compute_score


def _score(function: Callable[..., object], row: Fields, reply: str) -> float:
    # Some of verl's print what they read.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        result = function(
            data_source=row.get(DATA_SOURCE),
            solution_str=reply,
            ground_truth=scored_by(row)[TRUTH],
            # As verl's managers add to it.
            extra_info={"num_turns": 2, "rollout_reward_scores": {}, **(row.get(EXTRA_INFO) or {})},
        )
        if inspect.iscoroutinefunction(function):
            result = asyncio.run(cast(Coroutine[None, None, object], result))
    score = result["score"] if isinstance(result, dict) else result
    for name, value in (("score", score), ("acc", result.get("acc", 0) if isinstance(result, dict) else 0)):
        if isinstance(value, str) or not math.isfinite(float(cast(float, value))):
            raise ValueError(f"the {name} {value!r} is no finite number")
    return float(cast(float, score))


def _grade(grader: Grader, truth: object, form: Codec[str], reply: str) -> float:
    """1 for what the grader cannot check."""
    answer = form.parse(reply)
    grade = 0.0 if isinstance(answer, Malformed) else asyncio.run(grader(grader.read(truth), answer))
    if grade is not None and not 0 <= grade <= 1:
        raise ValueError(f"the grade {grade} is not within 0 and 1")
    return 1.0 if grade is None else grade


def _other_form(run: Run, first: FirstRow, workflow: Workflow, form: Codec[str]) -> Iterator[ConfigWarning]:
    """Whether the task itself asks for an answer in another form than the team."""
    question = " ".join(text_of(message) for message in first.row[str(run.config.data.prompt_key)])
    asked = [name for name, mark in MARKS.items() if mark in question]
    if asked and all(FORMS[name] != form for name in asked):
        own = form.render("7")
        value = f"the task of the first row of {first.file} asks for {MARKS[asked[0]]}, and the team for {own}"
        reason = "an agent reads both, and its answer is read in the team's form alone"
        other = f", or set ++{FORM}={asked[0]}" if hasattr(workflow, "form") else ""
        fix = f"leave the sentence out of the data{other}"
        yield ConfigWarning(value, reason=reason, fix=fix)
