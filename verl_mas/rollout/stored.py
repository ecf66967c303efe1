"""The rows of a session as TransferQueue stores them: verl's fields, ours, and the tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from verl_mas import row as names
from verl_mas.rollout.verl_client import OUTPUT, Model
from verl_mas.workflow.rewards import Row
from verl_mas.workflow.session import Session


@dataclass(frozen=True)
class StoredRow:
    key: str
    fields: dict[str, Any]
    tags: dict[str, Any]


def stored_rows(session: Session, models: Mapping[str, Model], dataset: Mapping[str, Any]) -> list[StoredRow]:
    """What the session leaves for training, in order. Acts without tokens (remote, empty) leave nothing.

    `dataset` are the dataset row's fields, with uid, session_id and global_steps.
    """
    rows = [row for row in session.rows() if row.generation.has_tokens]
    return [
        StoredRow(
            key=f"{session.task.key}_{index}",
            fields=_fields(row, session, models[row.first.policy], dataset),
            tags=_tags(row, session),
        )
        for index, row in enumerate(rows)
    ]


def failed_validation_row(
    session: Session,
    policy: str,
    model: Model,
    prompt_ids: Sequence[int],
    dataset: Mapping[str, Any],
    log_probs: bool,
) -> StoredRow:
    """A validation session that failed counts as zero; without a row it would drop out of the average."""
    output = AgentLoopOutput(
        prompt_ids=list(prompt_ids),
        response_ids=[model.tokenizer.eos_token_id],
        response_mask=[0],
        response_logprobs=[0.0] if log_probs else None,
        multi_modal_data={},
        mm_processor_kwargs={},
        mm_processor_output=None,
        reward_score=0.0,
        num_turns=0,
        metrics=AgentLoopMetrics(generate_sequences=0.0, num_preempted=-1),
        extra_fields={"min_global_steps": session.task.step, "max_global_steps": session.task.step},
    )
    member = next(member for member in session.setting.members.values() if member.spec.policy == policy)
    fields = {**_verl_fields(output, model, dataset), names.TEMPERATURE: torch.tensor(1.0)}
    tags = {
        **_verl_tags(fields, session),
        names.POLICY: policy,
        names.AGENT: member.name,
        names.ROLE: member.role,
        names.TURN: 0,
        names.BRANCH: 0,
        names.SESSION: session.task.session,
        names.TRAINABLE: False,
        names.COMMITTED: False,
        names.MALFORMED: True,
        names.TEAM_REWARD: 0.0,
        names.LOCAL_REWARD: 0.0,
        names.PENALTY: 0.0,
        names.OBSERVATION: observation(prompt_ids),
        names.TEMPERATURE: 1.0,
    }
    return StoredRow(f"{session.task.key}_0", fields, tags)


def _fields(row: Row, session: Session, model: Model, dataset: Mapping[str, Any]) -> dict[str, Any]:
    made: AgentLoopOutput = row.generation.extra[OUTPUT]
    output = made.model_copy(
        update={
            "reward_score": row.score,
            "extra_fields": {**made.extra_fields, names.REWARD_EXTRA_INFO: dict(session.info)},
        }
    )
    return {
        **_verl_fields(output, model, dataset),
        names.TEMPERATURE: torch.tensor(row.generation.temperature or 1.0),
    }


def _verl_fields(output: AgentLoopOutput, model: Model, dataset: Mapping[str, Any]) -> dict[str, Any]:
    """What verl's AgentLoopWorkerTQ stores for an output."""
    input_ids = torch.tensor([*output.prompt_ids, *output.response_ids], dtype=torch.int64)
    multi_modal = model.compute_multi_modal_inputs(output, input_ids)
    batched = input_ids.unsqueeze(0)
    position_ids = model.compute_position_ids(batched, torch.ones_like(batched), multi_modal).squeeze(0)
    fields = {**output.as_dict(), **dataset}
    fields.pop("multi_modal_data", None)
    return {
        **fields,
        "loss_mask": fields[names.RESPONSE_MASK],
        "input_ids": input_ids,
        "position_ids": position_ids,
        "multi_modal_inputs": multi_modal,
    }


def _tags(row: Row, session: Session) -> dict[str, Any]:
    act, output = row.first, row.generation.extra[OUTPUT]
    weights, earned = session.setting.reward, row.reward
    gross = (weights.team or 0.0) * earned.team + (weights.local or 0.0) * earned.local
    lengths = {"prompts": output.prompt_ids, "responses": output.response_ids}
    return {
        **_verl_tags({**lengths, "extra_fields": output.extra_fields}, session),
        names.POLICY: act.policy,
        names.AGENT: act.agent,
        names.ROLE: act.role,
        names.TURN: act.turn,
        names.BRANCH: act.branch,
        names.SESSION: session.task.session,
        names.TRAINABLE: act.trainable,
        names.COMMITTED: act.committed,
        names.MALFORMED: row.malformed,
        names.TEAM_REWARD: earned.team,
        names.LOCAL_REWARD: earned.local,
        names.PENALTY: gross - row.score,
        names.OBSERVATION: observation(output.prompt_ids),
        names.TEMPERATURE: row.generation.temperature or 1.0,
    }


def _verl_tags(fields: Mapping[str, Any], session: Session) -> dict[str, Any]:
    prompt, response = len(fields["prompts"]), len(fields["responses"])
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": session.task.step,
        "min_global_steps": fields["extra_fields"].get("min_global_steps"),
        "max_global_steps": fields["extra_fields"].get("max_global_steps"),
    }


def observation(prompt_ids: Sequence[int]) -> int:
    """A stable 63-bit hash of a prompt: equal for the candidates of a branch, in every process."""
    digest = blake2b(torch.tensor(list(prompt_ids), dtype=torch.int64).numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
