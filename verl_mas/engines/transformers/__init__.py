"""rollout.name=transformers: the embedded engine, for machines where no other engine runs."""

from __future__ import annotations

ENGINE = "transformers"


def server_name(policy: str, replica_rank: int, suffix: str = "") -> str:
    """The Ray actor name of one replica's server, which differs for all policies on a cluster."""
    return f"{ENGINE}_server_{policy}_{replica_rank}{suffix}"
