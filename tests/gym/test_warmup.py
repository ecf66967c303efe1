"""The warm-up of a tiny model."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_mas.config.hydra.recipe.guide_driver import team as guide_driver
from verl_mas.config.hydra.recipe.guide_driver.team import GuideDriver, asked
from verl_mas.config.hydra.recipe.math import arithmetic
from verl_mas.gym.puzzles.data import lessons
from verl_mas.gym.puzzles.teams import PlannerExecutor
from verl_mas.gym.warmup import BARE_TEMPLATE, WarmUp, bare, loss, tiny, tokenize, warm_up


def test_prompts_are_formatted_as_by_the_chat_template():
    from jinja2 import Template

    contents = {"q": "user", "a": "assistant", "r": "user"}
    messages = [{"role": role, "content": content} for content, role in contents.items()]
    assert bare(messages) == Template(BARE_TEMPLATE).render(messages=messages)


def test_a_warmed_up_model_can_be_trained_further(tmp_path):
    losses = []

    def trained(name: str, start: str = "") -> Path:
        config = WarmUp(steps=3, batch=4, lessons=40, hidden=32, layers=1, start=start)
        source = arithmetic.lessons(3, 9, noise=0.3)
        return warm_up(tmp_path / name, source, config, lambda step, loss: losses.append(loss))

    first = trained("first")
    second = trained("second", str(first))
    assert losses[3] < losses[0]
    assert (first / "tokenizer.json").read_text() == (second / "tokenizer.json").read_text()


def test_the_loss_is_of_the_replies_and_with_a_weight_of_the_prompts():
    import torch

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=11, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=2))  # fmt: skip
    # (prompt and reply, length of the reply)
    rows = [([1, 2, 3, 4, 5], 2), ([6, 7, 8], 1)]
    logs = [model(torch.tensor([ids])).logits[0].log_softmax(-1) for ids, _ in rows]
    of_replies = -torch.stack([logs[0][2, 4], logs[0][3, 5], logs[1][1, 8]]).mean()
    of_prompts = -torch.stack([logs[0][0, 2], logs[0][1, 3], logs[1][0, 7]]).mean()
    assert loss(model, rows).item() == pytest.approx(of_replies.item(), rel=1e-5)
    assert loss(model, rows, 0.5).item() == pytest.approx((of_replies + 0.5 * of_prompts).item(), rel=1e-5)


def test_a_word_is_a_token_and_lessons_are_tokenized_as_in_training(tmp_path):
    from transformers import AutoTokenizer

    workflow = PlannerExecutor(text="compact", moves=2)
    taught = list(islice(lessons(workflow, "plan_path", {"size": 4}, noise=0.5), 2000))
    config = WarmUp(hidden=32, layers=1, steps=1, batch=2, lessons=len(taught))
    tokenizer = AutoTokenizer.from_pretrained(warm_up(tmp_path / "model", iter(taught), config, lambda *_: None))
    for lesson, (ids, length) in zip(taught, tokenize(tokenizer, taught), strict=True):
        chat = [{"role": "user", "content": lesson.prompt}, {"role": "assistant", "content": lesson.reply}]
        assert ids[:-length] == tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
        assert tokenizer.decode(ids) == tokenizer.apply_chat_template(chat, tokenize=False)
        assert len(ids) == len(lesson.prompt.split(" ")) + 2 and length == 2


def test_a_lesson_with_an_image_has_the_tokens_and_pixels_of_the_processor(tmp_path):
    import torch
    from transformers import AutoProcessor

    team = tiny(GuideDriver, map="picture")
    taught = list(islice(guide_driver.lessons(team, guide_driver.SMALL, noise=0.0), 12))
    config = WarmUp(hidden=32, layers=1, steps=2, batch=12, lessons=12, vocabulary=259)
    losses = []
    folder = warm_up(tmp_path / "seeing", iter(taught), config, lambda step, value: losses.append(value))
    processor = AutoProcessor.from_pretrained(folder)
    for lesson, (ids, length) in zip(taught, tokenize(processor, taught), strict=True):
        content = lesson.prompt if lesson.image is None else asked(lesson.image, lesson.prompt)[0]["content"]
        chat = [{"role": "user", "content": content}]
        for reader in (processor, processor.tokenizer):  # verl renders with one of them and checks with the other
            text = reader.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            images = [lesson.image] if lesson.image else None
            assert processor(text=[text], images=images)["input_ids"][0] == ids[:-length]
    # Without these pixels, a model could not distinguish the goals.
    seen = [lesson.image for lesson in taught if lesson.image]
    pixels = processor.image_processor(images=seen, return_tensors="pt")["pixel_values"]
    assert len(pixels) == 64 * len(seen) and len(torch.unique(pixels)) > 2
    assert losses[1] < losses[0]
    further = warm_up(tmp_path / "further", iter(taught), replace(config, start=str(folder)), lambda *_: None)
    assert AutoProcessor.from_pretrained(further).image_processor.patch_size == 8
