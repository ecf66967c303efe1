"""Faster parsing by latex2sympy, with the same syntax trees.

Symptom: a check takes 20 ms, nearly all of it in ANTLR. Cause: the default prediction mode, LL, analyses the full
context repeatedly and caches nothing. A parse that succeeds in SLL mode, which caches, gives the same tree (ANTLR's
documentation of `PredictionMode`), so LL is needed only after SLL has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latex2sympy2_extended.gen.PSParser import PSParser
    from sympy import Basic


def parse_in_two_stages() -> None:
    """Make latex2sympy try SLL first, in this process. Idempotent."""
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    # latex2sympy has no option for the mode, so its class is replaced.
    one_stage = latex2sympy2._Latex2Sympy  # noqa: SLF001
    if hasattr(one_stage, "mode"):
        return

    class TwoStages(one_stage):  # type: ignore[misc, valid-type]
        mode = PredictionMode.SLL

        def create_parser(self, latex_str: str) -> PSParser:
            parser: PSParser = super().create_parser(latex_str)
            parser._interp.predictionMode = self.mode  # noqa: SLF001
            return parser

        def parse(self, latex_str: str) -> Basic:
            try:
                found: Basic = super().parse(latex_str)
            except Exception:  # noqa: BLE001  boundary: latex2sympy raises plain Exception for what it cannot parse
                self.mode = PredictionMode.LL
                found = super().parse(latex_str)
            return found

    latex2sympy2._Latex2Sympy = TwoStages  # noqa: SLF001
