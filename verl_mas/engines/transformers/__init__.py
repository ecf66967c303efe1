"""rollout.name=transformers: the embedded engine, for machines where no other engine runs."""

ENGINE = "transformers"


def server_name(policy: str, replica_rank: int, suffix: str = "") -> str:
    """Return the Ray actor name of a replica's server, which is unique in a cluster."""
    return f"{ENGINE}_server_{policy}_{replica_rank}{suffix}"
