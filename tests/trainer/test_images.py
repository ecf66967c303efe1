"""Teams in which one agent sees pictures, on `+platform=cpu`."""

from __future__ import annotations

import io

import pandas
import pytest
from PIL import Image

from verl_mas.sessions.reader import read_sessions
from verl_mas.testing import letters
from verl_mas.testing.tiny_vision_model import tiny_vision_model

pytestmark = pytest.mark.e2e
# Of the engine's log-probs and the trainer's, of a token and of the mean of a row.
DISTANCES = ("training/rollout_probs_diff_max", "rollout_corr/log_ppl_diff_max", "rollout_corr/log_ppl_diff_min")
COLOURS = dict(zip(letters.LETTERS, ("red", "green", "blue", "white"), strict=True))


def row(number):
    """A letter, shown as a colour. Pictures differ in size."""
    made, file = letters.row(number), io.BytesIO()
    Image.new("RGB", (32 + 16 * (number % 3), 32), COLOURS[made["reward_model"]["ground_truth"]]).save(file, "PNG")
    prompt = [{"role": "user", "content": "<image>Which?"}]
    return {**made, "prompt": prompt, "images": [{"bytes": file.getvalue()}]}


def test_a_policy_that_sees_and_one_that_reads_are_trained_on_pictures_and_words(letters, train_team, tmp_path):
    for split, count in (("train", 8), ("test", 4)):
        pandas.DataFrame([row(number) for number in range(count)]).to_parquet(tmp_path / f"{split}.parquet")
    # Large weights, so that a wrong picture or position shows.
    model = tiny_vision_model(tmp_path / "model", initial=0.1)
    done = train_team(
        tmp_path / "run",
        "Seer",
        f"actor_rollout_ref.model.path={model} data.train_files={tmp_path}/train.parquet",
        f"mas.policies={{main:{{}},words:{{overrides:{{model:{{path:{letters}/model}}}}}}}}",
        "mas.agents={seer:{policy:main},reader:{policy:main},copier:{policy:words}}",
        f"data.val_files={tmp_path}/test.parquet trainer.val_before_train=true",
        "actor_rollout_ref.rollout.n=2 trainer.total_training_steps=2",
    )
    for policy in ("main", "words"):
        for step in (1, 2):
            found = {name: done.steps[step][f"policy/{policy}/{name}"] for name in ("actor/grad_norm", *DISTANCES)}
            assert found.pop("actor/grad_norm") > 0
            assert max(map(abs, found.values())) < 1e-5
    assert done.steps[2]["policy/main/rows/real"] == 16
