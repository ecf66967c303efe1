"""The key and tags of a row, and that no other module spells their names."""

import ast
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.advantage import AdvantageInput
from verl_mas.config.schema import AgentSpec, RewardSpec
from verl_mas.errors import DataError
from verl_mas.verl_ import row
from verl_mas.verl_.row import RowKey, RowTags, is_padding
from verl_mas.workflow import Generation, Reply, Task
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.record import Clip, Recording, act_record
from verl_mas.workflow.rewards import rows_of

PACKAGE = Path(row.__file__).parents[1]
number, amount = st.integers(0, 10**6), st.floats(-1e6, 1e6)
KEYS = st.builds(RowKey, uid=st.text(min_size=1), session=number, index=number)
OF_TYPE = {"int": number, "int | None": st.none() | number, "float": amount, "str": st.text(), "bool": st.booleans()}
TAGS = st.builds(RowTags, **{field.name: OF_TYPE[field.type] for field in fields(RowTags)})


@given(KEYS)
def test_a_key_is_task_session_and_number_and_is_parsed_back_for_any_uid(key):
    assert str(key) == f"{key.uid}_{key.session}_{key.index}" and RowKey.parse(str(key)) == key


@given(TAGS)
def test_tags_are_read_back_also_from_a_row_to_which_verl_added_tags(tags):
    written = tags.as_dict()
    assert RowTags.of(written) == RowTags.of({**written, "is_padding": True}) == tags
    assert written["seq_len"] == tags.prompt_len + tags.response_len and written["status"] == "success"
    assert is_padding({**written, "is_padding": True}) and not is_padding(written)


def test_a_row_of_another_agent_loop_is_refused_with_the_missing_tag():
    with pytest.raises(DataError, match=r"without the tag 'agent'[\s\S]*default_agent_loop=mas"):
        RowTags.of({name: 0 for name in RowTags.__dataclass_fields__ if name != "agent"})


def test_every_name_of_an_act_is_a_tag_a_part_of_the_record_and_a_column(tags):
    names = [field.name for field in fields(row.Act)]
    row_tags = tags("solver", policy="llm", instance=3, turn=2, branch=1)
    reply = Reply(row.Act(**{name: getattr(row_tags, name) for name in names}), [], Generation("x"))
    agent = ResolvedAgent("solver", "solver", AgentSpec(), trainable=True)
    (written,) = rows_of(Task([]), [reply], 0.0, {"solver": agent}, RewardSpec())
    stored, record = row_tags.as_dict(), act_record(reply, written, Clip(Recording()))
    columns = AdvantageInput.of([RowKey("u", 0, 0)], [row_tags], torch.ones(1)).select(torch.tensor([0]))
    for name in names:
        assert stored[name] == record[name] == getattr(reply.act, name) == columns.codes(name).names[0]


# Words that have another meaning in these modules.
OTHER_MEANINGS = {
    "trainer/timeline.py": {"policy"},  # an argument of a trace event
    "rollout/truncation.py": {"role"},  # a message's
    "rollout/forgery.py": {"role"},
    "trainer/metrics.py": {"malformed", "advantages"},  # a metric, and a phase of the step
    "trainer/validation.py": {"malformed"},  # a metric
    "trainer/policies/local_policy.py": {"global_steps"},  # the trainer's attribute
    "rollout/resumed_reply.py": {"extra_fields"},  # a field of verl's TokenOutput
    "trainer/loss_weights.py": {"agent", "session"},  # weightings
    # Fields of verl's AgentLoopOutput, and a sampling setting.
    "rollout/verl_client.py": {"multi_modal_data", "num_turns", "temperature"},
    # Git's branch and its command, versions of packages, how a run ended, a state of SwanLab.
    "trainer/recorded.py": {"branch", "status", "versions", "finished", "success"},
    "rollout/worker.py": {"finished"},  # the status of a session on disk
}


def test_no_other_module_spells_a_tag_or_a_field():
    names = {value for name, value in vars(row).items() if name.isupper() and isinstance(value, str)}
    names |= {field.name for field in fields(RowTags)}
    spelt = defaultdict(set)
    for file in (file for folder in ("rollout", "trainer") for file in (PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                spelt[file.relative_to(PACKAGE).as_posix()].add(node.value)
    # The record of a session on disk has names of its own.
    spelt.pop("rollout/trajectories.py")
    assert spelt == OTHER_MEANINGS
