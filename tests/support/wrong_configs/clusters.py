"""Runs that join a cluster, or are on several nodes."""

from __future__ import annotations

from wrong_configs.case import TEAM, wrong

JOINS = "++ray_kwargs.ray_init.address=10.0.0.1:6379"
SENDS = "++ray_kwargs.ray_init.runtime_env.working_dir=."
TWO_NODES = "trainer.nnodes=2 ray_kwargs.ray_init.num_gpus=2"
ON_GPUS = " ".join(word for word in TEAM if word != "+platform=cpu")

CASES = (
    wrong(f"{ON_GPUS} {JOINS} ++ray_kwargs.ray_init.num_gpus=8", "set ray_kwargs.ray_init.num_gpus=null", alone=True),
    wrong(f"{SENDS} mas.trajectories.dir=sessions", "set mas.trajectories.dir to an absolute path", warned=True),
    wrong(
        f"{TWO_NODES} +mas.policies.far.remote={{base_url:'http://127.0.0.1:8001/v1',model:m}} "
        "+mas.policies.far.trainable=false mas.agents.verifier.policy=far +mas.policies.main={}",
        "this address is the node itself",
        warned=True,
    ),
)
