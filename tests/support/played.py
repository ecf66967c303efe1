"""Sessions with scripted replies on rows of data sets."""

from collections.abc import Mapping
from typing import Any

from verl_mas.config.schema import BranchSpec
from verl_mas.testing.scripted_llm import Script, ScriptedLLM
from verl_mas.workflow import Task, Workflow
from verl_mas.workflow.run import run
from verl_mas.workflow.session import Session


def task_of(row: Mapping[str, Any], **fields: Any) -> Task:
    return Task(row["prompt"], row["reward_model"]["ground_truth"], extra_info=row["extra_info"], **fields)


def played(
    workflow: Workflow, task: Task, replies: Script | Mapping[str, Script], k: int = 1
) -> tuple[Session, list[str]]:
    """Play a session; return it and the last message of each request. `k`: the number of candidates of a branch."""
    llm = ScriptedLLM(replies)
    session = run(workflow, task, llm, branch=BranchSpec(k=k))
    return session, [str(request.messages[-1]["content"]) for request in llm.requests]
