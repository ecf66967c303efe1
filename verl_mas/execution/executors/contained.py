"""Programs in a process that can reach nothing: no file, no network, and no more than its limits."""

from verl_mas.execution.contained.client import Contained
from verl_mas.execution.executor import register_executor

register_executor("contained")(Contained)
