"""The phases of a step, as the trainer goes through them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ledger.book import Book
from ledger.events import Event
from wrapt import wrap_function_wrapper

Wrapped = Callable[..., Any]
# A method of the trainer, and the phases that it begins and ends with.
METHODS = {
    "_wake": (SYNC, ROLLOUT),
    "_prepare": (LOG_PROBS, None),
    "_update": (UPDATE, None),
    "_save_checkpoint": ("save", None),
}


def install(trainer: ModuleType) -> None:
    for method, (before, after) in METHODS.items():
        wrap_function_wrapper(trainer, f"MasTrainer.{method}", _marks(before, after))


def _marks(before: str, after: str | None) -> Callable[..., Any]:
    def wrapper(wrapped: Wrapped, trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _mark(before)
        result = wrapped(*args, **kwargs)
        if after:
            _mark(after)
        return result

    return wrapper


def _mark(phase: str) -> None:
    Book.of_this_run().write(Event(phase))
