"""Converts a session to the rows that are stored, with verl's fields, fields of verl-mas, and tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from pydantic import create_model
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from verl_mas.errors import WorkflowError
from verl_mas.rollout.images import image_parts
from verl_mas.rollout.verl_client import Model, output_of
from verl_mas.verl_ import row
from verl_mas.verl_.row import Act, RowKey, RowTags, StoredRow
from verl_mas.verl_.types import Fields, Tokenizer
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import Row
from verl_mas.workflow.session import Session
from verl_mas.workflow.task import Task
from verl_mas.workflow.tool_sources import extra_fields_of

if TYPE_CHECKING:
    from PIL.Image import Image


def stored_rows(session: Session, models: Mapping[str, Model], dataset: Fields) -> list[StoredRow]:
    """Convert a session to the rows that are trained on, in order.

    `dataset` has the dataset row's fields, with uid, session_id and global_steps.
    """
    return [
        _stored(acts, acts.key, session, models[acts.first.policy], dataset)
        for acts in session.rows()
        if acts.key is not None
    ]


def failed_validation_row(session: Session, models: Mapping[str, Model], dataset: Fields, log_probs: bool) -> StoredRow:
    """Make the row of a failed validation session, with reward 0. Without this row, the average would skip the session.

    Its prompt is the first prompt of the policy, or one token if the policy had no prompt.
    """
    task = session.task
    # Choose a policy in `models` on which an agent acts. Policies of endpoints are not in `models`, because they have
    # no tokens, and a base in `models` may have no agent.
    agent = next(agent for agent in session.config.agents.values() if agent.spec.policy in models)
    policy, model = agent.spec.policy, models[agent.spec.policy]
    prompts = (reply.generation.prompt_ids for reply in session.replies if reply.policy == policy)
    output = AgentLoopOutput(
        prompt_ids=list(next(prompts, ())) or [model.tokenizer.eos_token_id],
        response_ids=[model.tokenizer.eos_token_id],
        response_mask=[0],
        response_logprobs=[0.0] if log_probs else None,
        multi_modal_data={},
        mm_processor_kwargs={},
        mm_processor_output=None,
        reward_score=0.0,
        num_turns=0,
        metrics=AgentLoopMetrics(generate_sequences=0.0, num_preempted=-1),
        extra_fields={row.MIN_GLOBAL_STEPS: task.step, row.MAX_GLOBAL_STEPS: task.step},
    )
    tags = RowTags(
        **vars(Act(agent.name, agent.role, policy)),
        **_tags_of(output, task),
        trainable=False,
        committed=False,
        malformed=True,
        team_reward=0.0,
        local_reward=0.0,
        penalty=0.0,
        temperature=1.0,
    )
    fields = _verl_fields(output, model, dataset) | {row.TEMPERATURE: torch.tensor(tags.temperature)}
    return StoredRow(RowKey(task.uid, task.session, 0), fields, tags)


def _stored(acts: Row, key: RowKey, session: Session, model: Model, dataset: Fields) -> StoredRow:
    sampled = output_of(acts.generation, np.asarray)
    output = _OfArrays.model_construct(sampled.model_fields_set, **dict(sampled))
    output = with_tool_fields(output, acts.replies)
    output.reward_score = acts.reward.score
    output.extra_fields[row.REWARD_EXTRA_INFO] = session.reported
    tags = _tags(acts, output, session.task)
    fields = _verl_fields(output, model, dataset) | {row.TEMPERATURE: torch.tensor(tags.temperature)}
    return StoredRow(key, fields, tags)


_TOKENS = ("prompt_ids", "response_ids", row.RESPONSE_MASK, "response_logprobs")
_made = cast("Callable[..., type[AgentLoopOutput]]", create_model)
# A variant of AgentLoopOutput with tokens in arrays, which are converted to tensors twenty times as fast as lists.
_OfArrays = _made("_OfArrays", __base__=AgentLoopOutput, **dict.fromkeys(_TOKENS, (object, None)))


def with_tool_fields(output: AgentLoopOutput, acts: Sequence[Reply]) -> AgentLoopOutput:
    """Copy an output and add the fields that verl's tool loop adds to a row: the reward of each call, and fields that
    tools stored."""
    calls = [call for act in acts for call in act.tool_calls if not call.left_out]
    if not calls:
        return output.model_copy(update={row.EXTRA_FIELDS: dict(output.extra_fields)})
    kept = {name: value for act in acts for name, value in extra_fields_of(act.tool_state).items()}
    rewards = [call.reward for call in calls if call.reward is not None]
    metrics = output.metrics.model_copy(update={"tool_calls": sum(call.seconds for call in calls)})
    fields = {**kept, **output.extra_fields, "tool_rewards": rewards}
    return output.model_copy(update={row.EXTRA_FIELDS: fields, "metrics": metrics})


def _verl_fields(output: AgentLoopOutput, model: Model, dataset: Fields) -> Fields:
    """Make the fields that verl's AgentLoopWorkerTQ stores for an output."""
    fields = {**output.as_dict(), **dataset}
    input_ids = torch.cat((fields[row.PROMPTS], fields[row.RESPONSES]))
    multi_modal = model.compute_multi_modal_inputs(output, input_ids)
    batched = input_ids.unsqueeze(0)
    position_ids = model.compute_position_ids(batched, torch.ones_like(batched), multi_modal).squeeze(0)
    fields.pop(row.MULTI_MODAL_DATA, None)
    return {
        **fields,
        row.LOSS_MASK: fields[row.RESPONSE_MASK],
        row.INPUT_IDS: input_ids,
        row.POSITION_IDS: position_ids,
        row.MULTI_MODAL_INPUTS: multi_modal,
    }


def _tags(acts: Row, output: AgentLoopOutput, task: Task) -> RowTags:
    return RowTags(
        **vars(acts.first.act),
        **_tags_of(output, task, images=len(image_parts(acts.first.messages))),
        trainable=acts.first.trainable,
        committed=acts.first.committed,
        malformed=acts.malformed,
        team_reward=acts.reward.team,
        local_reward=acts.reward.local,
        penalty=acts.reward.penalty,
        # Engines report the log-probs of greedy decoding (temperature 0) at temperature 1.
        temperature=acts.generation.temperature or 1.0,
    )


def _tags_of(output: AgentLoopOutput, task: Task, images: int = 0) -> Fields:
    """Make the tags that follow from the generated tokens and the task. `images`: the number of images in the prompt.
    These images come first among the images of the row."""
    of_row = (output.multi_modal_data or {}).get("images") or ()
    return dict(
        prompt_len=len(output.prompt_ids),
        response_len=len(output.response_ids),
        global_steps=task.step,
        min_global_steps=output.extra_fields.get(row.MIN_GLOBAL_STEPS),
        max_global_steps=output.extra_fields.get(row.MAX_GLOBAL_STEPS),
        source=str(task.data_source or ""),
        session=task.session,
        observation=observation(output.prompt_ids, of_row[:images]),
    )


def observation(prompt_ids: Sequence[int], images: Sequence[Image] = ()) -> int:
    """A stable 63-bit hash of a prompt: equal for the candidates of a branch, in every process."""
    digest = blake2b(np.asarray(prompt_ids, dtype=np.int64).tobytes(), digest_size=8)
    for image in images:
        digest.update(image.tobytes())
    return int.from_bytes(digest.digest(), "little") >> 1


def answer_of(session: Session, models: Mapping[str, Model], tokenizer: Tokenizer) -> AgentLoopOutput:
    """Return the answer of a session for verl's reward function. If the answer is a reply, its sampled tokens are used;
    otherwise its text is tokenized. `models`: the models by policy."""
    answer = session.outcome.answer if session.outcome else None
    if answer is None:
        value = "an outcome with neither an answer nor a reward"
        rule = "verl's reward function scores the answer"
        raise WorkflowError(value, rule=rule, fix="return Outcome(answer=...) or Outcome(reward=...)")
    if isinstance(answer, Reply) and answer.generation.has_tokens:
        model, acts_of_row = models.get(answer.policy), [act for act in session.replies if act.row == answer.row]
        if len(acts_of_row) == 1 and model is not None and model.tokenizer is tokenizer:
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
