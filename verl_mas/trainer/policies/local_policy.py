"""The part of verl's trainer that starts the training processes and the engines of one policy.

`TeamTrainer` handles data, rewards, rollout, advantages and the order of the step, for all policies of the team.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import ray
from omegaconf import DictConfig, open_dict
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.config.placement import TRAINING_ENGINES
from verl_mas.trainer.policies.servers import Servers
from verl_mas.trainer.policies.worker import CriticWorker, PolicyWorker
from verl_mas.trainer.starting import Turn
from verl_mas.trainer.timeline import LAUNCH, LOAD, PROCESSES
from verl_mas.verl_ import data_plane
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import MULTI_MODAL_INPUTS, OF_CRITIC, TEMPERATURE, TRAINER_ONLY
from verl_mas.verl_.types import Actor, Passed

T = TypeVar("T")
# Attributes of a trainer that verl's profiler reads.
PROFILED = ("global_steps", "prev_step_profile", "curr_step_profile", "next_step_profile")
_SCORES_TOKENS = {"compute_log_prob", "compute_ref_log_prob", "update_actor", "infer_batch", "train_mini_batch"}


class Workers:
    """A worker group that gets only the fields that it needs, and computes log-probs at each row's own temperature.

    verl's trainer sends every field, and sets one temperature for the batch, which would override the temperatures of
    the rows.
    """

    def __init__(self, group: RayWorkerGroup, reads: frozenset[str] = frozenset()):
        """`reads`: fields that these workers need, although other training processes do not need them."""
        self.group = group
        self._left_out = TRAINER_ONLY - reads

    def __getattr__(self, name: str) -> Passed:
        method = getattr(self.group, name)
        return partial(self.on_rows, method) if name in _SCORES_TOKENS else method

    def on_rows(self, method: Callable[[Rows], T], rows: Rows) -> T:
        temperatures = {tag[TEMPERATURE] for tag in rows.tags}
        if len(temperatures) > 1:
            rows.extra_info.pop(TEMPERATURE, None)
        else:
            rows.extra_info[TEMPERATURE] = temperatures.pop()
        return method(data_plane.for_workers(rows, also=[MULTI_MODAL_INPUTS], without=self._left_out))


class LocalPolicy(Servers, PPOTrainer):
    """A policy with its own configuration, training processes and engines."""

    # True: verl starts the training processes without engines, which are on another pool.
    engines_apart = False
    worker: type[PolicyWorker] = PolicyWorker  # class of its training processes
    _turn: Turn | None = None  # set only while the policy starts

    def __init__(self, name: str, view: DictConfig, pool: RayResourcePool, total_steps: int):
        self.name = name
        self.total_training_steps = total_steps
        self.pool = pool
        self.global_steps = 0
        self.timing_raw: dict[str, float] = {}
        self.prev_step_profile = self.curr_step_profile = self.next_step_profile = False
        with open_dict(view):
            # Start no reward workers here, because they are named actors, which the team starts once per run.
            view.reward.num_workers = 0
            view.reward.reward_model.enable = view.reward.reward_model.enable_resource_pool = False
            view.trainer.checkpoint_callback_class = None
        super().__init__(view)

    def start(self, turn: Turn) -> None:
        """Start the training processes, then start the engines and put them to sleep."""
        self._turn = turn
        self.init()
        self._turn = None
        if not self.engines_apart:
            turn.ended(LAUNCH)

    def __setattr__(self, name: str, value: object) -> None:
        """Detect the phases of the start by the attributes that verl sets.

        verl's set-up is a single function, but it sets one attribute when the training processes exist, and another
        attribute when they have loaded their model.
        """
        super().__setattr__(name, value)
        # If there is a critic, verl loads the critic's model before the policy's.
        first = "critic_wg" if self._turn and self.use_critic else "actor_rollout_wg"
        if self._turn and name == first and isinstance(value, RayWorkerGroup):
            ray.get([worker.__ray_ready__.remote() for worker in value.workers])
            self._turn.ended(PROCESSES)
            self._turn.wait(self.pool.name_prefix)
        elif self._turn and name == "reward_loop_manager":
            self._turn.ended(LOAD)

    def init(self) -> None:
        super().init()
        shared = self.use_reference_policy and self.ref_policy_wg is self.actor_rollout_wg
        self.actor_rollout_wg = Workers(self.actor_rollout_wg)
        if self.use_reference_policy:
            self.ref_policy_wg = self.actor_rollout_wg if shared else Workers(self.ref_policy_wg)
        if self.use_critic:
            self.critic_wg = Workers(self.critic_wg, reads=OF_CRITIC)

    # -- parts of verl's set-up that the team does ---------------------------------------------------------

    def _build_replay_buffer(self) -> None:  # type: ignore[override]
        """Do nothing, because the team's trainer has the replay buffer."""

    def _init_dataloader(self) -> None:
        """Do nothing, because the team's trainer reads the data. `__init__` gets the number of steps."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.resource_pool_manager = _OnePool(self.pool, self.mapping)
        workers: dict[Role, Passed] = {Role.Critic: CriticWorker}
        self.role_worker_mapping = {
            role: ray.remote(workers.get(role, self.worker)) for role in self.role_worker_mapping
        }

    @property
    def _enable_hybrid_replicas(self) -> bool:
        return not self.engines_apart

    def _load_checkpoint(self) -> None:
        """Do nothing: the team loads the checkpoint when all policies have started."""

    def on_sample_end(self) -> None:
        """Do nothing, because the team's trainer calls `sleep`."""

    def on_step_end(self) -> None:
        """Do nothing, because the team's trainer calls `wake`."""

    def profile(self, start: bool, state: Mapping[str, object]) -> None:
        """Start or stop verl's profiler in processes and engines. `state`: the team's values of PROFILED."""
        vars(self).update(state)
        (self._start_profiling if start else self._stop_profiling)()

    # -- weights --------------------------------------------------------------------------------------------

    def wake(self, step: int) -> None:
        """Wake the engines, which allocate their GPU memory again, and send them the current weights."""
        self.checkpoint_manager.update_weights(step)

    def sleep(self) -> None:
        self.checkpoint_manager.sleep_replicas()

    def move(self, device: str) -> None:
        """Move the parameters to a device if they are offloaded. verl itself moves them only for a single call."""
        if self.offloads:
            self.actor_rollout_wg.to(device, model=True, optimizer=False, grad=False)

    @property
    def workers(self) -> list[Actor]:
        """The training processes of the policy."""
        return list(self.actor_rollout_wg.workers)

    @property
    def offloads(self) -> bool:
        """Whether the parameters are in host memory while they are not in use."""
        actor = self.config.actor_rollout_ref.actor
        if actor.strategy == "fsdp2" and (actor.get("fsdp_config") or {}).get("offload_policy"):
            # FSDP2 moves parameters itself, layer by layer, and fails if they have been moved.
            return False
        return any((actor.get(engine) or {}).get("param_offload") for engine in TRAINING_ENGINES)


class _OnePool(ResourcePoolManager):
    """verl's pool manager, with every role of the policy on one existing pool."""

    def __init__(self, pool: RayResourcePool, roles: Iterable[Role]):
        name = pool.name_prefix
        super().__init__(resource_pool_spec={name: list(pool.store)}, mapping=dict.fromkeys(roles, name))  # type: ignore[arg-type]  # verl's annotation is out of date
        self.resource_pool_dict = {name: pool}

    def create_resource_pool(self) -> None:
        """Do nothing: the team has created the pool."""
