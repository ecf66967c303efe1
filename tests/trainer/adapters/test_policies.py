"""Calls to the processes of a base that a run on the CPU does not show: offloading, and a loss per adapter."""

from pathlib import Path

import pytest
from transfer_queue import KVBatchMeta

from verl_mas.config.adapters import ADAPTER, adapter_table
from verl_mas.config.run import Run
from verl_mas.trainer.adapters.policies import REFERENCE, AdapterPolicy, SharedBase
from verl_mas.trainer.checkpoint import Checkpoints
from verl_mas.trainer.modes.sync import MasTrainer
from verl_mas.trainer.policies.local_policy import Workers
from verl_mas.trainer.pools.pools import Pools
from verl_mas.verl_ import data_plane

# Settings with which verl's loss is used unchanged.
VERLS_LOSS = {"mas__skip_zero_advantage": False, "mas__old_log_probs_every": 1}
POLICIES = {name: {"adapter_of": "main", "overrides": {"model": {"lora_rank": 4}}} for name in ("one", "two")}


class Group:
    """A fake of verl's worker group that records its calls and saves a file."""

    world_size = 1

    def __init__(self, log):
        self.log = log

    def to(self, device, model, optimizer, grad):
        assert (model, optimizer, grad) == (True, False, False)
        self.log.append(f"to {device}")

    def save_checkpoint(self, folder):
        self.save_adapter("base", folder)

    def save_adapter(self, policy, folder):
        Path(folder).mkdir()
        (Path(folder) / "weights").write_text(policy)

    def load_checkpoint(self, folder):
        self.load_adapter("base", folder)

    def load_adapter(self, policy, folder):
        assert (Path(folder) / "weights").read_text() == policy
        self.log.append(f"load {policy}")

    def set_adapter_loss(self, policy, loss):
        self.log.append(f"loss of {policy}")


@pytest.fixture
def team(make):
    """A trainer with a base of two adapters, whose calls are in `log`."""

    def build(**settings):
        made = object.__new__(MasTrainer)
        made.config = make(mas__policies=POLICIES, actor_rollout_ref__model__lora_alpha=16, **settings)
        made.run = Run.of(made.config)
        made.mas, made.pools, made.log = made.run.mas, Pools(made.run), []
        table, pool = adapter_table(made.run, "main"), made.pools.of("main")
        base = SharedBase("main", made.run.view("main").copy(), pool, table, 10)
        base.tokenizer = base.llm_server_manager = None
        base.actor_rollout_wg = Workers(Group(made.log))
        for name in POLICIES:
            base.adapters[name] = AdapterPolicy(made.run.view(name), base)
            base.adapters[name].init()
        made.policies = {"main": base}
        return made

    return build


@pytest.mark.parametrize(
    ("offload", "moves"),
    [
        ({"param_offload": True}, ["to device", "to cpu"]),
        ({}, []),
        # FSDP2 moves the weights itself, and refuses to compute with weights that were moved.
        ({"param_offload": True, "offload_policy": True}, []),
    ],
)
def test_a_base_is_moved_once_per_phase_for_all_of_its_adapters(team, offload, moves):
    made = team(actor_rollout_ref__actor__fsdp_config=offload, **VERLS_LOSS)
    made._run_by_host(["one", "two"], made.log.append)  # noqa: SLF001
    assert made.log == [*moves[:1], "one", "two", *moves[1:]]


def test_each_adapter_gets_its_own_loss_where_rows_are_weighted(team):
    assert team(mas__loss__weighting="session", **VERLS_LOSS).log == ["loss of one", "loss of two"]
    assert team(mas__loss__weighting="row", **VERLS_LOSS).log == []


def test_a_pass_of_the_reference_names_no_adapter(team, monkeypatch):
    monkeypatch.setattr(data_plane, "for_workers", lambda rows, **given: rows)
    workers, named = team(**VERLS_LOSS).trained["one"].actor_rollout_wg, []
    for extra in ({}, {REFERENCE: True}, {REFERENCE: False}):
        rows = KVBatchMeta(["1-0_0_0"], [{"temperature": 1.0}], "train", extra_info={ADAPTER: "two", **extra})
        workers.on_rows(lambda rows: named.append(rows.extra_info.get(ADAPTER)), rows)
    assert named == ["one", None, "one"]


def test_adapters_are_saved_and_loaded_while_their_base_is_on_the_device(team, tmp_path):
    made = team(actor_rollout_ref__actor__fsdp_config__param_offload=True, **VERLS_LOSS)
    made.config.trainer.default_local_dir = str(tmp_path)
    checkpoints = Checkpoints(made.policies["main"].saved, made.config.trainer, {})
    folder = checkpoints.save(1, {})
    moved = ["to device", "to cpu"]
    assert made.log == [*moved, *moved]
    checkpoints.load_checkpoint(f"{folder}/actor")
    assert made.log[4:] == ["load base", *("to device", "load one", "to cpu"), *("to device", "load two", "to cpu")]
