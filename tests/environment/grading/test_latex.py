import pytest

from verl_mas.environment.grading.math import _WARM_UP, parse_in_two_stages

latex2sympy2 = pytest.importorskip("latex2sympy2_extended.latex2sympy2")

OTHERS = r"""
\dfrac34 | \sqrt[3]{x^2+1} | x^2-(y+1)(y-1) | (-\infty, 2] \cup (3, 4) | a=1, b=2 | \sin(\frac{\pi}{3}) | \log_2 8
\int_0^1 x dx | \sum_{k=1}^{3} k | e^{i\pi} | \frac{1}{ | +*
"""
TEXTS = [text for pair in _WARM_UP for text in pair] + ["", *OTHERS.strip().replace("\n", " | ").split(" | ")]


def parsed(text: str) -> str:
    try:
        return repr(latex2sympy2.latex2sympy(text, normalization_config=None))
    except Exception as error:  # noqa: BLE001  whatever latex2sympy raises
        return str(error)


def test_two_stages_read_what_the_full_context_reads(monkeypatch):
    parse_in_two_stages()
    parse_in_two_stages()
    both = list(map(parsed, TEXTS))
    (one_stage,) = latex2sympy2._Latex2Sympy.__bases__  # noqa: SLF001
    monkeypatch.setattr(latex2sympy2, "_Latex2Sympy", one_stage)
    assert one_stage.__name__ == "_Latex2Sympy" and both == list(map(parsed, TEXTS))
