"""The `mas:` block of a verl configuration: its schema, and the settings that follow from it per policy and pool.

Importing this package loads neither torch nor ray.
"""

from verl_mas.config.run import load
from verl_mas.config.schema import MasConfig

__all__ = ["MasConfig", "load"]
