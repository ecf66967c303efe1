"""Key, tags and fields of a training row. Their names are written in this module only.

Tags are small and stored with the key, so rows are split and grouped without moving a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import TypeAlias

from verl_mas.errors import DataError
from verl_mas.verl_.types import Fields

TagValues: TypeAlias = Fields  # tags of a row as TransferQueue stores them: our tags, and the tags that verl adds

# -- fields of a row, by verl's names -----------------------------------------------------------------------

UID = "uid"  # id of the task
SESSION_ID = "session_id"
PROMPTS = "prompts"
RESPONSES = "responses"
INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
RESPONSE_MASK = "response_mask"
LOSS_MASK = "loss_mask"
SCORES = "rm_scores"
ADVANTAGES = "advantages"
RETURNS = "returns"
VALUES = "values"  # values of a critic
OLD_LOG_PROBS = "old_log_probs"
KEPT_SHARE = "kept_share"  # tokens of the rows that the update keeps, divided by the tokens of all rows
ROLLOUT_LOG_PROBS = "rollout_log_probs"
ROLLOUT_WEIGHTS = "rollout_is_weights"
LOSS_WEIGHTS = "loss_weights"  # added by verl-mas
# Tensors that training processes do not read, except that a critic reads OF_CRITIC. verl makes most of these tensors
# for metrics. It also adds a `dummy_tensor` to every dataset row.
OF_CRITIC = frozenset({RETURNS, VALUES})
TRAINER_ONLY = OF_CRITIC | {SCORES, ROLLOUT_LOG_PROBS, "log_probs", "entropy", "dummy_tensor"}
MULTI_MODAL_DATA = "multi_modal_data"
MULTI_MODAL_INPUTS = "multi_modal_inputs"
NUM_TURNS = "num_turns"
# Columns of the dataset row.
AGENT_NAME = "agent_name"
RAW_PROMPT = "raw_prompt"
DATA_SOURCE = "data_source"
PROGRESS = "mas_progress"  # added by verl-mas: share of the run's steps that were over when the task was dispatched
REWARD_MODEL = "reward_model"
GROUND_TRUTH = "ground_truth"
EXTRA_INFO = "extra_info"
# A field that is a mapping, and two of its keys.
EXTRA_FIELDS = "extra_fields"
REWARD_EXTRA_INFO = "reward_extra_info"
VERDICTS = "verdicts"  # added by verl-mas in REWARD_EXTRA_INFO: `Outcome.verdicts`

# -- tags that are read or written one by one ---------------------------------------------------------------

POLICY = "policy"
AGENT = "agent"
TURN = "turn"
RESPONSE_LEN = "response_len"
TRAINABLE = "trainable"
# This tag is also the name of a field. verl's engines read the temperature from this field if the trainer sets no
# temperature for the whole batch.
TEMPERATURE = "temperature"
# Tags of verl. The weight versions are in EXTRA_FIELDS, too.
GLOBAL_STEPS = "global_steps"
MIN_GLOBAL_STEPS = "min_global_steps"
MAX_GLOBAL_STEPS = "max_global_steps"
# Added by verl-mas in EXTRA_FIELDS of a reply: [[tokens, version], ...] in order, and the number of its aborts.
VERSIONS = "versions"
ABORTS = "aborts"
IS_PADDING = "is_padding"
IS_PROMPT = "is_prompt"
STATUS = "status"
LENGTH = "seq_len"  # tag: tokens of a row
# Values of STATUS. The first four are for tasks, whose keys are their uids. SUCCESS is for rows.
PENDING, RUNNING, FINISHED, FAILURE = "pending", "running", "finished", "failure"
SUCCESS = "success"


@dataclass(frozen=True)
class RowKey:
    """A row's task, session and index in the session. verl takes the text before the first underscore as the uid."""

    uid: str
    session: int
    index: int

    def __str__(self) -> str:
        return f"{session_key(self.uid, self.session)}_{self.index}"

    @classmethod
    def parse(cls, key: str) -> RowKey:
        uid, session, index = key.rsplit("_", 2)
        return cls(uid, int(session), int(index))


def session_key(uid: str, session: int) -> str:
    return f"{uid}_{session}"


@dataclass(frozen=True)
class Act:
    """Identity of an act. Stored rows, session records and estimators use all fields of this class, so a field that is
    added here (with a default) becomes a tag, a part of records and a column."""

    agent: str
    role: str
    policy: str
    instance: int = 0  # instance of the agent; turns are counted per instance
    turn: int = 0
    branch: int = 0


@dataclass(frozen=True, kw_only=True)
class RowTags(Act):
    """The tags of a row of a session."""

    prompt_len: int
    response_len: int
    global_steps: int
    # Versions of the oldest and newest weights that sampled the row. None: the engine does not count versions.
    min_global_steps: int | None
    max_global_steps: int | None
    source: str  # data source of the task; empty if its dataset row has no data source
    session: int
    trainable: bool
    committed: bool  # False: a candidate that its session did not continue with
    malformed: bool
    team_reward: float
    local_reward: float
    penalty: float
    observation: int  # a stable hash of the prompt: its token ids and images
    temperature: float

    def as_dict(self) -> dict[str, object]:
        return {STATUS: SUCCESS, **vars(self), LENGTH: self.prompt_len + self.response_len}

    @classmethod
    def of(cls, tag: TagValues) -> RowTags:
        try:
            return cls(**{name: tag[name] for name in _TAG_NAMES})
        except KeyError as missing:
            value = f"a row without the tag {missing}"
            fix = "set actor_rollout_ref.rollout.agent.default_agent_loop=mas, which tags rows"
            raise DataError(value, rule="every row is tagged with its agent, policy and rewards", fix=fix) from None


_TAG_NAMES = tuple(field.name for field in dataclass_fields(RowTags))


@dataclass(frozen=True)
class StoredRow:
    """A row as it is stored."""

    key: RowKey
    fields: Mapping[str, object]
    tags: RowTags


def is_padding(tag: Mapping[str, object]) -> bool:
    """Whether verl added the row to fill a batch. Such a row is a copy, with the other tags of the original row."""
    return bool(tag.get(IS_PADDING, False))
