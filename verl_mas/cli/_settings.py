"""Every setting that verl-mas declares, as its dataclasses do."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.advantage.options import AdvantageOptions
from verl_mas.config.compose import compose
from verl_mas.config.describe import Setting, settings
from verl_mas.config.load import load
from verl_mas.config.schema import MasConfig
from verl_mas.engines.transformers.request import PATH as ENGINE
from verl_mas.engines.transformers.request import Options
from verl_mas.user_code import load_user_code
from verl_mas.workflow.base import find


def known_settings(overrides: Sequence[str] = ()) -> list[Setting]:
    """Those of `mas` and of the embedded engine; with the arguments of a run those of its workflow, too."""
    found = [*settings(MasConfig, "mas"), *settings(AdvantageOptions, "mas.advantage"), *settings(Options, ENGINE)]
    if overrides:
        mas = load(compose(overrides).get("mas"))
        load_user_code(mas)
        found += settings(find(mas.workflow.name, mas.workflow.path), "mas.workflow.args")
    return found
