"""How the trainer of a team uses a base and its adapters, without processes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from transfer_queue import KVBatchMeta
from verl.workers.rollout.replica import TokenOutput

from verl_mas import data_plane
from verl_mas.config.adapters import ADAPTER, adapter_table, read_table
from verl_mas.config.run import Run
from verl_mas.rollout.team_client import Balanced, Only, Slices, TeamClient
from verl_mas.row import TEMPERATURE
from verl_mas.run_folder.checkpoints import latest
from verl_mas.trainer.adapters.policies import REFERENCE, AdapterPolicy, AdapterWorkers, SharedBase
from verl_mas.trainer.adapters.worker import AdapterWorker
from verl_mas.trainer.checkpoint import Checkpoints
from verl_mas.trainer.modes.sync import MasTrainer
from verl_mas.trainer.policies.local_policy import Workers
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer, Updates
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.pools.pools import Pools

RANKS = {"one": 4, "two": 8}
ADAPTERS = {name: {"adapter_of": "main", "overrides": {"model": {"lora_rank": rank}}} for name, rank in RANKS.items()}
POLICIES = {"full": {}, **ADAPTERS, "past": {"trainable": False}}


class Group:
    """verl's worker group: it writes its calls down, and saves a file."""

    world_size = 1

    def __init__(self, log):
        self.log = log

    def to(self, device, model, optimizer, grad):
        assert (model, optimizer, grad) == (True, False, False)
        self.log.append(f"to {device}")

    def update_actor(self, rows):
        return {"metrics": {"loss": [0.5], "mfu": [0.1], "adapter/updates": 3, "adapter/norm": 0.25}}

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


def server():
    """As a Ray handle; it keeps what it is asked."""
    return Mock(**{"generate.remote": AsyncMock(return_value=TokenOutput(token_ids=[1]))})


class Manager:
    """verl's LLMServerManager, as a client uses it."""

    def __init__(self, config, servers):
        self.config, self.server_handles = config, servers

    def get_client(self, kind, **given):
        return kind(config=self.config, load_balancer_handle=None, **given)


@pytest.fixture
def team(make):
    """A trainer with a full policy, a base of two adapters and a frozen policy, whose calls are written down."""

    def build(servers=1, **settings):
        config = make(mas__policies=POLICIES, actor_rollout_ref__model__lora_alpha=16, **settings)
        made, log = object.__new__(MasTrainer), []
        made.run = Run.of(config)
        made.config, made.mas, made.log, made.slices, made.global_steps = config, made.run.mas, log, {}, 1
        made._workers = []
        made.pools = Pools(made.run)
        views = {name: made.run.view(name).copy() for name in made.mas.policies}
        pool = made.pools.of("main")
        full, past = object.__new__(PolicyTrainer), object.__new__(FrozenPolicy)
        base = SharedBase("main", views["main"], pool, adapter_table(made.run, "main"), 10)
        base.tokenizer = "the base's"
        base._sent_bytes = 3_000_000  # noqa: SLF001
        for member, name in ((full, "full"), (base, "main"), (past, "past")):
            member.name, member.config = name, views[name]
            member.llm_server_manager = Manager(config, [server() for _ in range(servers)])
            member.actor_rollout_wg = Workers(Group(log))
            send = partial(lambda text, step: log.append(text), f"send {name}")
            member.checkpoint_manager = SimpleNamespace(update_weights=send)
        for name in ("one", "two"):
            base.adapters[name] = AdapterPolicy(name, views[name], base, Updates(1, 10, made.mas.loss.weighting))
            base.adapters[name].init()
        past.wake = lambda step: log.append("wake past")
        made.members = {"full": full, "past": past, "main": base}
        return made

    return build


def test_the_base_has_the_processes_for_its_adapters_and_no_model_for_the_reference(team):
    base = team(actor_rollout_ref__actor__use_kl_loss=True).members["main"]
    base._init_resource_pool_mgr()  # noqa: SLF001
    # The full policy's reference is a model of its own: verl calls the role actor_rollout_ref.
    (role,) = base.role_worker_mapping
    assert str(role) == "actor_rollout"
    assert base.role_worker_mapping[role].__ray_metadata__.modified_class.__mro__[1] is AdapterWorker
    section = base.config.actor_rollout_ref
    assert (section.rollout.load_format, section.model.lora_rank) == ("auto", 8)
    assert {name: adapter.rank for name, adapter in read_table(section.rollout.custom).items()} == RANKS


def test_adapters_are_trained_and_their_base_has_the_processes(team):
    made = team()
    assert list(made.trained) == ["full", "one", "two"] and list(made.training) == ["full", "main"]
    one = made.trained["one"]
    assert one.tokenizer == "the base's" and one.ref_in_actor and one.use_reference_policy is False
    assert one.llm_server_manager is made.members["main"].llm_server_manager
    # Weights go to the engines of a base once for all adapters.
    made._wake()  # noqa: SLF001
    assert made.log == ["send full", "wake past", "send main"]
    sync = made.members["main"].metrics
    assert sync["sync/seconds"] >= 0 and sync["sync/mb"] == 3 and made.members["full"].metrics == {}


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
    made = team(actor_rollout_ref__actor__fsdp_config=offload)
    made._each(["one", "full", "two"], made.log.append)  # noqa: SLF001
    assert made.log == [*moves[:1], "one", "two", *moves[1:], "full"]


def a_row():
    return KVBatchMeta(partition_id="train", keys=["k"], tags=[{TEMPERATURE: 1.0}], extra_info={})


def test_a_call_names_the_adapter_and_a_pass_of_the_reference_names_none(monkeypatch):
    monkeypatch.setattr(data_plane, "for_workers", lambda rows, **fields: rows)
    same = SimpleNamespace(compute_log_prob=lambda rows: rows, update_actor=lambda rows: rows)
    group, rows = AdapterWorkers(same, "one"), a_row()
    sent = group.compute_log_prob(rows).extra_info
    assert sent[ADAPTER] == "one" and sent["disable_auto_offload"] is True
    rows.extra_info[REFERENCE] = True
    sent = group.compute_log_prob(rows).extra_info
    assert ADAPTER not in sent and REFERENCE not in sent, "verl would switch off what is trainable"
    assert group.update_actor(rows).extra_info[ADAPTER] == "one"


def test_an_update_reports_the_adapter_beside_what_verl_reports_of_an_actor(team, monkeypatch):
    monkeypatch.setattr(data_plane, "for_workers", lambda rows, **fields: rows)
    policy, metrics = team().trained["one"], {}
    policy.plan = SimpleNamespace(updates=1)
    policy.update(a_row(), metrics, counted=4)
    assert metrics == {"actor/loss": 0.5, "perf/mfu/actor": 0.1, "adapter/updates": 3, "adapter/norm": 0.25}


def test_each_adapter_gets_its_own_loss_where_rows_are_weighted(team):
    assert team(mas__loss__weighting="session").log == ["loss of one", "loss of two"]
    assert team(mas__loss__weighting="row").log == []


@pytest.mark.parametrize(("servers", "sliced", "kind"), [(1, False, Only), (2, False, Balanced), (1, True, Slices)])
def test_requests_of_an_adapter_go_to_the_engines_of_its_base_and_name_it(team, monkeypatch, servers, sliced, kind):
    made = team(servers)
    if sliced:
        made.slices = {"shared": SimpleNamespace()}
    clients = made.get_llm_client()
    assert sorted(clients) == ["full", "main", "one", "past", "two"]
    assert all(isinstance(client.server, kind) for client in clients.values())
    if sliced:
        assert (clients["one"].server.policy, clients["one"].adapter) == ("main", "one")
    servers = {name: made.members[name].llm_server_manager.server_handles for name in made.members}
    monkeypatch.setattr(TeamClient, "_release_server", lambda self, *args, **given: None)
    for name, home in (("one", "main"), ("main", "main"), ("full", "full")):

        async def acquire(self, request_id, home=home, **extra):
            return "0", servers[home][0]

        monkeypatch.setattr(TeamClient, "_acquire_server", acquire)
        asyncio.run(clients[name].generate(request_id="r", prompt_ids=[1], sampling_params={}))
    asked = {name: servers[name][0].generate.remote.call_args_list for name in ("main", "full")}
    assert [call.kwargs.get(ADAPTER) for call in asked["main"]] == ["one", None]
    assert [call.kwargs.get(ADAPTER) for call in asked["full"]] == [None]


def test_a_checkpoint_has_the_adapters_and_the_random_state_of_the_base_and_keeps_as_many_as_asked(team, tmp_path):
    made = team(actor_rollout_ref__actor__fsdp_config__param_offload=True)
    base, trainer = made.members["main"], made.config.trainer
    trainer.default_local_dir, trainer.max_actor_ckpt_to_keep = str(tmp_path), 1
    checkpoints = Checkpoints(base.saved, trainer, {})
    folders = [checkpoints.save(step, {}) for step in (1, 2, 3)]
    assert [folder.exists() for folder in folders] == [False, True, True], "one more than asked, as of every policy"
    there = [[path.name for path in sorted(folder.iterdir()) if path.is_dir()] for folder in folders[1:]]
    assert there == [["main", "one", "two"]] * 2
    assert latest(tmp_path).step == 3
    made.log.clear()
    checkpoints.load_checkpoint(f"{folders[2]}/actor")
    moved = [["to device", f"load {name}", "to cpu"] for name in ("one", "two")]
    assert made.log == ["load base", *moved[0], *moved[1]]


def test_a_step_without_rows_of_an_adapter_does_not_call_it(team):
    made = team()
    tags = [{"policy": name, "trainable": True} for name in ("one", "main", "full")]
    batch = KVBatchMeta(partition_id="train", keys=["1_0_0", "1_0_1", "1_0_2"], tags=tags)
    parts = made._parts(batch, [0, 1, 2])  # noqa: SLF001
    assert list(parts) == ["full", "one"], "two has no rows, and the base is not trained"
