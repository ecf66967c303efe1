"""A faster way through latex2sympy's grammar, with the same trees.

Symptom: a check takes 20 ms, nearly all of it in ANTLR. Cause: the default prediction mode, LL, looks at the whole
context again and again and caches none of it. A parse that succeeds in the SLL mode, which caches, is the same parse
(ANTLR's documentation of `PredictionMode`), so LL is needed only where SLL fails.
"""

from __future__ import annotations

from typing import Any


def parse_in_two_stages() -> None:
    """Make latex2sympy in this process try SLL first. Idempotent."""
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    one_stage = latex2sympy2._Latex2Sympy
    if hasattr(one_stage, "mode"):
        return

    class TwoStages(one_stage):  # type: ignore[misc, valid-type]
        mode = PredictionMode.SLL

        def create_parser(self, latex_str: str) -> Any:
            parser = super().create_parser(latex_str)
            parser._interp.predictionMode = self.mode
            return parser

        def parse(self, latex_str: str) -> Any:
            try:
                return super().parse(latex_str)
            except Exception:  # what latex2sympy raises for a text that it cannot read
                self.mode = PredictionMode.LL
                return super().parse(latex_str)

    latex2sympy2._Latex2Sympy = TwoStages
