"""Snapshots of policies that cannot be taken, or never are."""

from __future__ import annotations

from wrong_configs.case import wrong

AGENTS = "mas.agents={solver:{policy:main},verifier:{policy:past}}"


def _past(snapshot: str, more: str = "", main: str = "") -> str:
    return f"mas.policies={{main:{{{main}}},past:{{snapshot:{{{snapshot}}}{more}}}}} {AGENTS}"


CASES = (
    wrong(_past("of:mian,every:2"), "did you mean 'main'"),
    wrong(_past("of:past,every:2"), "which is a snapshot"),
    wrong(_past("of:main,every:2", main="trainable:false"), "which is not trained"),
    wrong(_past("of:main,every:0"), "at least 1"),
    wrong(_past("of:main"), "every"),
    wrong(_past("of:main,every:2", ",trainable:true"), "snapshot with trainable=true"),
    wrong(_past("of:main,every:2", ",remote:{base_url:'http://h/v1',model:m}"), "snapshot with remote"),
    wrong(_past("of:main,every:2", ",overrides:{model:{path:{task}/other}}"), "remove mas.policies.past.overrides"),
    wrong(_past("of:main,every:2", main="overrides:{model:{lora_rank:4}}"), "and a snapshot, past"),
    wrong(_past("of:main,every:9") + " trainer.total_training_steps=9", "start model in all of them", warned=True),
)
