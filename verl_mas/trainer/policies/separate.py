"""A policy that trains on one pool and is served on another, in trainer mode mas_separate_async."""

from omegaconf import DictConfig, open_dict
from verl.checkpoint_engine.base import CheckpointEngineManager
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from verl_mas.config.engine_tag import EngineTag
from verl_mas.config.run import View
from verl_mas.engines import ray_weights
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.servers import Engines
from verl_mas.trainer.starting import Turn
from verl_mas.trainer.timeline import LAUNCH

# Name of verl's checkpoint engine for NVIDIA GPUs and for Ascend. It finds its process group by the group's name. verl
# names every group `default`, so `send_apart` gives each policy's group its own name.
NAMED_GROUP = "nccl"


class SeparatePolicy(PolicyTrainer):
    """A policy whose engines serve all the time, except while they receive new weights."""

    engines_apart = True

    def __init__(
        self, view: View, config: DictConfig, pool: RayResourcePool, total_steps: int, serving: RayResourcePool
    ):
        self.serving = serving
        super().__init__(view, config, pool, total_steps)

    def start(self, turn: Turn) -> None:
        super().start(turn)
        turn.wait(self.serving.name_prefix)
        self.llm_server_manager = Standalone.create(config=self.config, rollout_resource_pool=self.serving)
        self.checkpoint_manager = CheckpointEngineManager(
            config=omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=self.actor_rollout_wg,
            replicas=self.llm_server_manager.get_replicas(),
        )
        turn.ended(LAUNCH)

    def wake(self, step: int) -> None:
        """Send the engines the current weights. Running requests are aborted, and can be resumed."""
        super().wake(step)
        # Move the parameters back to the host; verl does so only after a transfer to engines on the same devices.
        self.move("cpu")

    def sleep(self) -> None:
        """Do nothing: the engines have their own GPUs."""


def send_apart(view: DictConfig, name: str) -> None:
    """Configure a policy's view so that its checkpoint engine is separate from other policies' checkpoint engines.

    A policy that gets no weights needs these settings, too, because verl makes a checkpoint engine next to the engines
    of every policy.
    """
    with open_dict(view):
        engine = view.actor_rollout_ref.rollout.checkpoint_engine
        if engine.backend == ray_weights.BACKEND:
            engine.custom_backend_module = ray_weights.__name__
        elif engine.backend == NAMED_GROUP:
            own = engine.engine_kwargs.get(engine.backend) or {}
            engine.engine_kwargs[engine.backend] = {**own, "group_name": f"verl_mas_{name}"}


class Standalone(Engines):
    """Engines of one policy on a serving pool, on which other policies may have engines, too."""

    async def start_replica(self, replica: RolloutReplica, share: RayResourcePool) -> None:
        """Start a replica on `share`. verl's `init_standalone` would reserve separate GPUs for the replica."""
        replica.rollout_mode, replica.resource_pool = RolloutMode.STANDALONE, share
        group = RayWorkerGroup(
            resource_pool=share,
            ray_cls_with_init=replica.get_ray_class_with_init_args(),
            bin_pack=False,
            # Ray finds workers by name, and each policy counts its replicas from 0, so the name has the policy's name.
            name_prefix=f"rollout_standalone_{EngineTag.of(self.rollout_config).policy}_{replica.replica_rank}",
            use_gpu=replica.rollout_worker_use_gpu(),
            device_name=get_device_name(),
        )
        replica.workers = group.workers
        await replica.launch_servers()
