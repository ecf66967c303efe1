"""Sessions of the shipped teams, whose agents reply what a test says."""

from collections.abc import Mapping

from in_process_programs import NAME

from verl_mas.config.schema import BranchSpec, FaultSpec
from verl_mas.environment.execution.executor import Execution
from verl_mas.testing.scripted_llm import Script, ScriptedLLM
from verl_mas.workflow import Reply, Task, Workflow
from verl_mas.workflow.run import run
from verl_mas.workflow.session import Session

HALF = Task([{"role": "user", "content": "What is a half?"}], ground_truth="0.5")
IN_PROCESS = Execution(executor=NAME)


def box(answer: object) -> str:
    return f"so \\boxed{{{answer}}}"


def python(program: str) -> str:
    return f"```python\n{program}\n```"


RIGHT, WRONG = box(0.5), box(2)
APPROVE, REJECT = "fine <verify>approve</verify>", "no <verify>reject</verify>"


def play(
    workflow: Workflow, replies: Script | Mapping[str, Script] | ScriptedLLM, task: Task = HALF, **branch: object
) -> tuple[Session, ScriptedLLM]:
    """Play a session; return it and its LLM. `branch`: the settings of `mas.branch`."""
    llm = replies if isinstance(replies, ScriptedLLM) else ScriptedLLM(replies)
    spec = BranchSpec(**branch)  # type: ignore[arg-type]
    return run(workflow, task, llm, branch=spec, faults=FaultSpec(retries=0)), llm


def acts_of(session: Session, agent: str) -> list[Reply]:
    return [reply for reply in session.replies if reply.agent == agent]


def prompts_of(llm: ScriptedLLM, *agents: str) -> list[str]:
    """Return the last message of each prompt of these agents, or of all agents."""
    return [str(r.messages[-1]["content"]) for r in llm.requests if not agents or r.agent in agents]
