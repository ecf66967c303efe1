"""Teams in which one agent sees pictures, on `+platform=cpu`."""

import io

import pandas
import pytest
from commands import output_of
from PIL import Image
from verl.utils.tokenizer import hf_processor

from verl_mas.testing.letters import LETTERS
from verl_mas.testing.letters import row as letters_row
from verl_mas.testing.tiny_vision_model import PATCH, tiny_vision_model

pytestmark = pytest.mark.e2e
# Differences between the log-probs of engine and trainer, per token and per row.
DISTANCES = ("training/rollout_probs_diff_max", "rollout_corr/log_ppl_diff_max", "rollout_corr/log_ppl_diff_min")
COLOURS = dict(zip(LETTERS, ("red", "green", "blue", "white"), strict=True))


def row(number):
    """A letter, shown as a colour. Pictures differ in size."""
    made, file = letters_row(number), io.BytesIO()
    Image.new("RGB", (32 + 16 * (number % 3), 32), COLOURS[made["reward_model"]["ground_truth"]]).save(file, "PNG")
    prompt = [{"role": "user", "content": "<image>Which?"}]
    return {**made, "prompt": prompt, "images": [{"bytes": file.getvalue()}]}


def test_a_policy_that_sees_and_one_that_reads_are_trained_on_pictures_and_words(letters, train_team, tmp_path, capsys):
    rows = [row(number) for number in range(8)]
    pictures = {one["images"][0]["bytes"] for one in rows}
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    pandas.DataFrame(rows[:4]).to_parquet(tmp_path / "test.parquet")
    # With large weights, a wrong picture or position changes the log-probs clearly.
    model = tiny_vision_model(tmp_path / "model", initial=0.1)
    done = train_team(
        tmp_path / "run",
        "Seer",
        f"actor_rollout_ref.model.path={model} data.train_files={tmp_path}/train.parquet",
        f"mas.policies={{main:{{}},words:{{overrides:{{model:{{path:{letters}/model}}}}}}}}",
        "mas.agents={seer:{policy:main},reader:{policy:main},copier:{policy:words}}",
        f"data.val_files={tmp_path}/test.parquet trainer.val_before_train=true",
        "actor_rollout_ref.rollout.n=2 trainer.total_training_steps=2 trainer.save_freq=2",
    )
    for policy in ("main", "words"):
        for step in (1, 2):
            found = {name: done.steps[step][f"policy/{policy}/{name}"] for name in ("actor/grad_norm", *DISTANCES)}
            assert found.pop("actor/grad_norm") > 0
            assert max(map(abs, found.values())) < 1e-5
    # A session is lost if a reply begins with a token that stands for an image: one in a hundred, at random.
    assert done.steps[2]["policy/main/rows/real"] >= 12
    records = done.folder / "checkpoints" / "trajectories"
    assert {path.read_bytes() for path in (records / "images").iterdir()} <= pictures
    assert len(list((records / "images").iterdir())) == len(pictures), "each once"
    exported = output_of(capsys, "export", done.folder / "checkpoints", "--out", tmp_path / "team")
    assert "main: " in exported and "words: " in exported
    assert hf_processor(str(tmp_path / "team" / "main")).image_processor.patch_size == PATCH
    assert hf_processor(str(tmp_path / "team" / "words")) is None
