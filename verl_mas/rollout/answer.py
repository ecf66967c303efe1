"""The answer of a session as verl's reward functions read one: tokens, which they decode with verl's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from verl_mas.errors import WorkflowError
from verl_mas.rollout.stored import with_tool_fields
from verl_mas.rollout.verl_client import Model, output_of
from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.session import Session


def answer_of(session: Session, models: Mapping[str, Model], tokenizer: Tokenizer) -> AgentLoopOutput:
    """The reply that is the answer as it was sampled, else its text as tokens. `models` are those of the policies."""
    answer = session.outcome.answer if session.outcome else None
    if answer is None:
        raise WorkflowError(
            "an outcome with neither an answer nor a reward",
            rule="verl's reward function scores the answer",
            fix="return Outcome(answer=...) or Outcome(reward=...)",
        )
    if isinstance(answer, Reply) and _is_whole_row(answer, session, models, tokenizer):
        return with_tool_fields(output_of(answer.generation), [answer])
    ids = tokenizer.encode(session.answer or "", add_special_tokens=False) or [tokenizer.eos_token_id]
    return AgentLoopOutput(
        prompt_ids=tokenizer.encode(session.task.question) or [tokenizer.eos_token_id],
        response_ids=ids,
        response_mask=[1] * len(ids),
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={},
    )


def _is_whole_row(reply: Reply, session: Session, models: Mapping[str, Model], tokenizer: Tokenizer) -> bool:
    model = models.get(reply.policy)
    alone = sum(other.row == reply.row for other in session.replies) == 1
    return alone and reply.generation.has_tokens and model is not None and model.tokenizer is tokenizer
