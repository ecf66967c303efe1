"""The driver's handle of a replica: it starts the server and forwards calls."""

import asyncio
from typing import cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import RolloutReplica

from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.stock import OffsetReplica
from verl_mas.engines.transformers import server_name
from verl_mas.engines.transformers.request import Options
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.verl_.types import Actor


class TransformersReplica(OffsetReplica, RolloutReplica):
    """A replica with one server process next to one training worker."""

    @property
    def name(self) -> str:
        kind = "_reward" if self.is_reward_model else "_teacher" if self.is_teacher_model else ""
        return server_name(EngineTag.of(self.config).policy, self.replica_rank, kind + self.name_suffix)

    async def launch_servers(self) -> None:
        assert self.world_size == 1, "a replica of this engine is one process"
        threads = str(Options.of(self.config.engine_kwargs).threads)
        platform = get_platform()
        node, devices = await self._place(platform.ray_resource_name())
        variables = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # Make the GPUs of the training worker visible. The server shares them, so it reserves no GPU from Ray.
            platform.visible_devices_envvar(): ",".join(devices),
            **dict.fromkeys(platform.ray_noset_envvars(), "1"),
        }
        actor_class = ray.remote(TransformersServer).options(
            name=self.name,
            num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            runtime_env={"env_vars": variables},
        )
        # The rank is unique among the replicas of all policies. It is part of the seed, so that each replica samples
        # with different random numbers.
        given = (self.config, self.model_config, self.rollout_mode, self.replica_rank, platform.device_name)
        server = cast("Actor", actor_class.remote(self.name, *given))
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, self.name

    async def wait_for_requests_to_drain(self) -> None:
        await asyncio.gather(*[server.wait_for_requests_to_drain.remote() for server in self.servers])

    async def _place(self, resource: str) -> tuple[str, list[str]]:
        """Return the node of the training worker, and the worker's GPUs as the node numbers them."""

        def place(worker: object) -> tuple[str, list[str]]:
            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids().get(resource, [])

        node_and_gpus: tuple[str, list[str]] = await self.workers[0].__ray_call__.remote(place)
        return node_and_gpus
