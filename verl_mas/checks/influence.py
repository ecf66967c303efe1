"""Whether what agents read depends on the task, and whether anything depends on what they write: sessions of a user's
workflow that differ in one thing are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from verl_mas.checks.answers import WRONG, in_every_form
from verl_mas.checks.tried import ASKED, as_asked, of_user, played, rewards_of
from verl_mas.config.run import Run
from verl_mas.errors import ConfigWarning
from verl_mas.grading.forms import MARKS
from verl_mas.testing.scripted_llm import Script, ScriptedLLM
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import Request
from verl_mas.workflow.task import Task, text_of
from verl_mas.workflow.tools import Tool

TASKS, SHORT = 6, 200


def check_influence(run: Run, tools: Mapping[str, Tool], tasks: Sequence[Task], what: str) -> Iterator[ConfigWarning]:
    yield from _never_malformed(run, tools, tasks[0], what)
    if not of_user(resolve(run.mas.workflow)):
        return
    members = {name: member for name, member in agents_of(run.mas).items() if member.trainable}
    yield from _constant(run, tools, tasks, what)
    for name in members if len(members) > 1 else ():
        if not _changes_anything(run, tools, tasks[0], name):
            value = f"{what}: what {name} writes changes no prompt, no answer and no reward"
            yield ConfigWarning(value, "its advantages are noise of the other agents", "use its reply, or train it not")
    yield from _other_form(run, tools, tasks[0], what)


def _echo(request: Request, branch: int) -> str:
    """So that what a prompt says of the task reaches who reads the reply."""
    return text_of(request.messages[-1])[:SHORT]


def _constant(run: Run, tools: Mapping[str, Tool], tasks: Sequence[Task], what: str) -> Iterator[ConfigWarning]:
    """Agents whose prompt is the same, whatever the task is."""
    if len({task.question for task in tasks}) < 3:
        return
    prompts = dict[str, set[str]]()
    for task in tasks:
        client = ScriptedLLM(_echo)
        played(run.mas, tools, client, task)
        texts = {request.agent: "".join(map(text_of, request.messages)) for request in client.requests}
        for agent, text in texts.items():
            prompts.setdefault(agent, set()).add(text)
    for agent in (agent for agent, texts in prompts.items() if len(texts) == 1):
        value = f"{what}: the prompt of {agent} is the same on {len(tasks)} tasks: {next(iter(prompts[agent]))!r:.80}"
        yield ConfigWarning(value, "it knows nothing of the task", "write the task, or a reply that has it, into it")


def _changes_anything(run: Run, tools: Mapping[str, Tool], task: Task, name: str) -> bool:
    replies: list[Script] = [WRONG, str(task.ground_truth), as_asked("a", 0), as_asked(str(task.ground_truth), 1)]
    for others in (WRONG, as_asked(str(task.ground_truth), 0)):
        found = [_seen(run, tools, task, name, own, others) for own in replies]
        if None in found or len({*found}) > 1:
            return True
    return False


def _seen(run: Run, tools: Mapping[str, Tool], task: Task, name: str, own: Script, others: Script) -> str | None:
    """All that comes of a session but the replies of one agent. None: it failed, or the agent did not act."""
    client = ScriptedLLM({each: own if each == name else others for each in agents_of(run.mas)})
    result = played(run.mas, tools, client, task)
    if result is None or result.failed or name not in {request.agent for request in client.requests}:
        return None
    outcome, rows = result.session.outcome, result.session.rows()
    answer = str(getattr(outcome and outcome.answer, "text", outcome and outcome.answer))
    asked = [(request.agent, request.messages) for request in client.requests]
    return repr((answer, [row.reward.score for row in rows], asked))


def _other_form(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[ConfigWarning]:
    """A ground truth in the form that the prompts ask for that gets no reward, where in another form it gets one."""
    truth, client = str(task.ground_truth), ScriptedLLM(WRONG)
    played(run.mas, tools, client, task)
    texts = "".join(text_of(message) for request in client.requests for message in request.messages)
    tags = Counter(tag for tag, _ in {*ASKED.findall(texts)})
    # A tag with several words is a choice.
    asked = [*(tag for tag, words in tags.items() if words == 1), *(mark for mark in MARKS.values() if mark in texts)]

    def paid(reply: Script) -> float:
        return max(rewards_of(run.mas, tools, task, reply), default=0.0)

    forms = [as_asked(truth, word, only=True) for word in (0, 1)]
    if truth and asked and max(map(paid, forms)) <= paid(WRONG) < max(paid(text) for _, text in in_every_form(truth)):
        value = f"{what}: the ground truth in the form that prompts ask for ({', '.join(asked)}) gets no reward"
        yield ConfigWarning(value, "in another form it gets one", "ask for the form that is read")


def _never_malformed(run: Run, tools: Mapping[str, Tool], task: Task, what: str) -> Iterator[ConfigWarning]:
    costly = {name for name, member in agents_of(run.mas).items() if member.spec.format_penalty}
    acted, marked = set[str](), set[str]()
    for reply in ("", "<answer> \\boxed{ ```") if costly else ():
        result = played(run.mas, tools, ScriptedLLM(reply), task)
        for each in result.session.replies if result else ():
            acted.add(each.agent)
            marked |= {each.agent} if each.malformed else set()
    for name in sorted(costly & acted - marked):
        value = f"mas.agents.{name}.format_penalty, and no reply of {name} is found malformed"
        yield ConfigWarning(value, f"{what} parses none of its replies", "parse them, or remove the penalty")
