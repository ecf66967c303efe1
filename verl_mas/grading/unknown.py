"""Questions without a known answer: those that a trained team is asked. Their sessions run as in training, and what
graders say of them means nothing, so it is left out of their outcome."""

from __future__ import annotations

from contextvars import ContextVar

# Whether the session is asked a question, and not trained or evaluated: only then may a ground truth be missing.
ASKED: ContextVar[bool] = ContextVar("asked", default=False)
UNKNOWN = "(unknown)"


def unknown(ground_truth: object) -> bool:
    return ground_truth is None and ASKED.get()
