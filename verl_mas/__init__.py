"""Teams of LLM agents for verl: see README.md for the one-line adoption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_mas.workflow.openai import OpenAIClient
    from verl_mas.workflow.run import arun, run

__version__ = "0.1.0"
__all__ = ["OpenAIClient", "arun", "run"]

_HOMES = {"run": "run", "arun": "run", "OpenAIClient": "openai"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: verl imports this package in every process."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"verl_mas.workflow.{_HOMES[name]}"), name)
