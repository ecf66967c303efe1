"""Images in rows and in prompts are checked before Ray starts."""

import shutil
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from verl_mas.checks.images import image_tokens
from verl_mas.checks.session import check_rows, check_session, play
from verl_mas.testing.tiny_vision_model import tiny_vision_model


def png(size=(48, 32)) -> bytes:
    Image.new("RGB", size, "red").save(file := BytesIO(), "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def sees(tmp_path_factory):
    return str(tiny_vision_model(tmp_path_factory.mktemp("sees"), hidden=32, layers=1))


@pytest.fixture
def look(on_rows):
    """Return the findings for rows with these images and this prompt. By default, the team's model reads only text."""

    def look(*images, prompt="<image>What is it?", **settings):
        rows = [{"prompt": [{"role": "user", "content": prompt}], "images": list(images)}] * 3
        lengths = {"data__max_prompt_length": 1000, "data__max_response_length": 32}
        run = on_rows(rows, **{**lengths, **settings})
        problems = list(check_rows(run)) or list(check_session(run, play(run, {})) if run.mode else ())
        return sorted({str(problem) for problem in problems})

    return look


def test_images_for_a_model_that_sees_are_accepted(look, sees):
    assert look({"bytes": png()}, actor_rollout_ref__model__path=sees) == []


def test_each_agent_whose_model_is_one_of_text_and_that_gets_an_image_is_named(look, sees, letters):
    (of_rows,) = look({"bytes": png()})
    assert "row 1: images, and actor_rollout_ref.model.path=" in of_rows and "is one of text" in of_rows
    blind = {"model": {"path": str(letters / "model")}}
    policies = {"seeing": {}, "blind": {"overrides": blind}}
    agents = {"solver": {"policy": "seeing"}, "verifier": {"policy": "blind"}}
    (only,) = look({"bytes": png()}, mas__policies=policies, mas__agents=agents, actor_rollout_ref__model__path=sees)
    assert "agent verifier gets" in only and "set mas.policies.blind.overrides.model.path" in only


def test_vllm_is_refused_images_that_another_processor_than_qwens_reads(look, sees, tmp_path):
    other = Path(shutil.copytree(sees, tmp_path / "other")) / "processor_config.json"
    other.write_text(other.read_text().replace("Qwen2VLImageProcessor", "SmolVLMImageProcessor"))
    one = {"actor_rollout_ref__model__path": str(other.parent)}
    (first,) = look({"bytes": png()}, **one, actor_rollout_ref__rollout__name="vllm")
    assert "are not read by a Qwen2VLImageProcessor" in first and "verl sends vllm all tokens of an image" in first
    assert look({"bytes": png()}, **one, actor_rollout_ref__rollout__name="sglang") == []
    qwens = {"actor_rollout_ref__model__path": sees, "actor_rollout_ref__rollout__name": "vllm"}
    assert look({"bytes": png()}, **qwens) == []


@pytest.mark.parametrize(
    ("images", "prompt", "says"),
    [
        ([{"bytes": b"no image"}], "<image>?", "row 1, image 1: the image b'no image': cannot identify image file"),
        ([{"bytes": png()}, {"bytes": png()[:60]}], "<image><image>", "row 1, image 2: the image b'"),
        ([{"bytes": None}], "<image>?", "image 1: the image None"),
        ([{"bytes": png((2000, 2))}], "<image>?", "image 1: an image of 2000 x 2 pixels"),
        ([{"image": "/no/such.png"}], "<image>?", "No such file or directory"),
        ([{"bytes": png()}], "What is it?", "row 1: 1 images, and 0 times <image>"),
    ],
)
def test_what_verl_could_not_read_or_place_is_refused_with_its_row(look, sees, images, prompt, says):
    (refused,) = look(*images, prompt=prompt, actor_rollout_ref__model__path=sees)
    assert says in refused and "column 'images'" in refused and "rule: verl " in refused and "fix:  write " in refused


def test_an_address_is_left_to_the_run(look, sees):
    assert look("https://example.org/a.png", actor_rollout_ref__model__path=sees) == []


def test_tokens_of_images_count_in_the_prompt(look, sees):
    """An image of 128 by 128 pixels has 64 tokens: one per square of 16 by 16 pixels."""
    given = {"actor_rollout_ref__model__path": sees, "data__max_response_length": 1}
    assert not any("allowed" in one for one in look({"bytes": png((128, 128))}, data__max_prompt_length=1000, **given))
    refused = look({"bytes": png((128, 128))}, data__max_prompt_length=60, **given)
    assert any("and 60 are allowed" in one for one in refused)


def test_a_text_model_of_a_run_without_a_team_is_refused(look):
    (refused,) = look({"bytes": png()}, mas=None, trainer__v1__trainer_mode="sync", algorithm__adv_estimator="grpo")
    assert "is one of text" in refused


@pytest.mark.parametrize("size", [(48, 32), (1, 1), (300, 20), (127, 129), (64, 64), (1000, 700)])
def test_an_image_has_as_many_tokens_as_the_processor_makes_of_it(sees, size):
    from qwen_vl_utils import process_vision_info
    from verl.utils.tokenizer import hf_processor

    processor = hf_processor(sees).image_processor
    messages = [{"role": "user", "content": [{"type": "image", "image": Image.new("RGB", size)}]}]
    images, _ = process_vision_info(messages, image_patch_size=processor.patch_size)
    grid = processor(images=images, return_tensors="pt")["image_grid_thw"]
    assert image_tokens(size, 16, [(4, 16_384), (1, 64)]) == int(grid.prod()) // 4
