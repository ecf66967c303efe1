"""Record the phases of each step of the trainer, with the names that `verl_mas.planning` gives them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from wrapt import wrap_function_wrapper

from ledger.book import Book
from ledger.events import Event
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, SYNC, UPDATE

SAVE = "save"
# Method of the trainer -> the phase that begins when the method starts, and the phase that begins when it ends.
METHODS = {
    "_wake": (SYNC, ROLLOUT),
    "_compute_log_probs": (LOG_PROBS, None),
    "_update": (UPDATE, None),
    "_save_checkpoint": (SAVE, None),
}


def install(trainer: ModuleType) -> None:
    for method, (before, after) in METHODS.items():
        wrap_function_wrapper(trainer, f"TeamTrainer.{method}", _marks(before, after))


def _marks(before: str, after: str | None) -> Callable[..., Any]:
    def wrapper(wrapped: Callable[..., Any], trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _mark(before)
        result = wrapped(*args, **kwargs)
        if after:
            _mark(after)
        return result

    return wrapper


def _mark(phase: str) -> None:
    Book.of_this_run().write(Event(phase))
