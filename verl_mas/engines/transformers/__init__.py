"""rollout.name=transformers: the embedded engine, for machines where no other engine runs.

Importing this is free; verl asks for the classes by name.
"""

from __future__ import annotations

from verl_mas.engines.facts import EngineFacts, add_engine

ENGINE = "transformers"


def server_name(policy: str, replica_rank: int, suffix: str = "") -> str:
    """The Ray actor name of one replica's server: two policies on one cluster do not meet."""
    return f"{ENGINE}_server_{policy}_{replica_rank}{suffix}"


add_engine(
    ENGINE,
    replica=f"{__name__}.replica.TransformersReplica",
    adapter=f"{__name__}.adapter.ServerAdapter",
    facts=EngineFacts(package="transformers"),
)
