"""Advantages per agent: one kernel, and one file per estimator. Importing this package loads neither torch nor verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_mas.util.later import lazy

if TYPE_CHECKING:
    from verl_mas.advantage.estimator import ESTIMATORS as ESTIMATORS
    from verl_mas.advantage.estimator import compute_advantages as compute_advantages
    from verl_mas.advantage.estimator import options_for as options_for
    from verl_mas.advantage.kernel import to_tokens as to_tokens
    from verl_mas.advantage.options import AdvantageOptions as AdvantageOptions
    from verl_mas.advantage.record import AdvantageInput as AdvantageInput
    from verl_mas.advantage.record import AdvantageOutput as AdvantageOutput
    from verl_mas.advantage.record import RunningScores as RunningScores

# Import each name only when it is first used, because most of these modules load torch.
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
