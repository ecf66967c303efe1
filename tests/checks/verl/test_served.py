from __future__ import annotations

from verl_mas.checks.verl import served
from verl_mas.config.compose import compose
from verl_mas.config.verl_settings import ATTENTION


def test_the_fix_for_a_missing_flash_attn_can_be_pasted_into_any_command(monkeypatch):
    monkeypatch.setattr(served, "find_spec", lambda name: name != "kernels" and name != "flash_attn")
    for command in (
        ["+mas=single", "actor_rollout_ref.rollout.name=transformers"],
        ["+recipe=math/shared", f"{ATTENTION}=flash_attention_2"],
    ):
        config = compose(command)
        (error,) = served.check_installed(config)
        fix = error.fix.removeprefix("set ").partition(",")[0]
        assert list(served.check_installed(compose([*command, fix]))) == []
