"""Sources of engines that a test uses in place of installed engines."""

from verl_contract import sources

from verl_mas.engines.sampling import installed_names


def forget() -> None:
    """Clear the caches of names that were read from other sources."""
    for read in [*vars(sources).values(), installed_names]:
        if hasattr(read, "cache_clear"):
            read.cache_clear()
