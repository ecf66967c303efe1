"""What verl-mas relies on in verl beyond its public functions and classes: overrides, private names, texts, keys.

The tables are data, in `overridden.json` and `contract.yaml`; nothing of verl is imported here.
`verl_mas.checks.contract` compares them with the verl that is installed; a test proves that no override and no private
name is missing.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from verl_mas.verl_.types import Fields

# With which the tables agree.
VERSION = "0.9.1"

_HERE = Path(__file__).parent
_TABLES: Fields = yaml.load(
    (_HERE / "contract.yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
# Class of verl -> method that a class of ours overrides -> its parameters. Made by `scripts/lock_overrides.py`.
OVERRIDDEN: dict[str, dict[str, str]] = json.loads((_HERE / "overridden.json").read_text(encoding="utf-8"))
# What each one means is written beside it in the file.
USED: dict[str, dict[str, str | None]] = _TABLES["used"]
MIXED_INTO: dict[str, str] = _TABLES["mixed_into"]
TEXTS: dict[str, dict[str, int]] = _TABLES["texts"]
RESTATED: dict[str, tuple[str, str]] = _TABLES["restated"]
KEYS: list[str] = _TABLES["keys"]
