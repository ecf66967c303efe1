from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import metrics_page


def test_the_page_is_that_of_the_table():
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "python scripts/metrics_page.py"
