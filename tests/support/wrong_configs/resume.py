"""Checkpoints that are not there, are cut or belong to another run."""

from __future__ import annotations

import json

from wrong_configs.case import wrong
from wrong_configs.files import all_of, checkpoint, text

PATH = "trainer.resume_mode=resume_path"
HERE = "{folder}/checkpoints/global_step"
OFFER = "trainer.resume_mode=resume_path trainer.resume_from_path="
OTHER = json.dumps({"algorithm.adv_estimator": "team_grpo"})
SIZES = json.dumps({"files": {"main/model.pt": 70}})
AUTO = "trainer.resume_mode=auto"

CASES = (
    wrong(AUTO, OFFER, prepare=all_of(checkpoint(2), checkpoint(4, pointer="99998"))),
    wrong(AUTO, "of step 2, 4", prepare=all_of(checkpoint(2), checkpoint(4, pointer="6"))),
    wrong(AUTO, "resume_mode=disable", prepare=text("checkpoints/latest_checkpointed_iteration.txt", "3")),
    wrong(AUTO, "is empty", prepare=checkpoint(4, pointer="")),
    wrong(AUTO, "holds 'seven'", prepare=checkpoint(4, pointer="seven")),
    wrong(AUTO, "holds '-4'", prepare=checkpoint(4, pointer="-4")),
    wrong(AUTO, "latest_checkpointed_iteration.txt is not there", prepare=checkpoint(4)),
    wrong(AUTO, "run.json cannot be read as JSON", prepare=checkpoint(4, pointer="4", run='{"models": {')),
    wrong(AUTO, "run.json holds no JSON object", prepare=checkpoint(4, pointer="4", run="[]")),
    wrong(AUTO, "was trained with algorithm.adv_estimator=team_grpo", prepare=checkpoint(4, pointer="4", run=OTHER)),
    wrong(AUTO, "has no policy main; it has solver", prepare=checkpoint(4, pointer="4", policy="solver")),
    wrong(AUTO, "main/model.pt is missing", prepare=checkpoint(4, pointer="4", policy=None, run=SIZES)),
    wrong(AUTO, "main/model.pt has 7 bytes and was saved with 70", prepare=checkpoint(4, pointer="4", run=SIZES)),
    wrong(PATH, "trainer.resume_from_path=None"),
    wrong(PATH, OFFER, prepare=checkpoint(4, pointer="4")),
    wrong(f"{PATH} trainer.resume_from_path=/nowhere/global_step_3", "/nowhere/global_step_3 is not there"),
    wrong(f"{PATH} trainer.resume_from_path={HERE}_5", "global_step_4", prepare=checkpoint(4, pointer="4")),
    wrong(f"{PATH} trainer.resume_from_path={{folder}}/checkpoints", OFFER, prepare=checkpoint(4, pointer="4")),
    wrong(f"{PATH} trainer.resume_from_path={HERE}_4/", "what follows global", prepare=checkpoint(4, pointer="4")),
    wrong(f"{PATH} trainer.resume_from_path={HERE}_3", "no run.json", prepare=text("checkpoints/global_step_3/a", "")),
    wrong(f"{PATH} trainer.resume_from_path={HERE}_4", "cannot be read as JSON", prepare=checkpoint(4, run="{")),
    wrong(f"{PATH} trainer.resume_from_path={HERE}_4", "has no policy main", prepare=checkpoint(4, policy="b")),
)
