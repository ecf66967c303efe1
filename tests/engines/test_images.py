import asyncio

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from verl.utils.tokenizer import hf_processor
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode

from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.batcher import Capacity, ContinuousBatcher
from verl_mas.engines.transformers.images import Images
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.errors import RequestError
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.testing.tiny_vision_model import tiny_vision_model

SIGHT = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vision_model(tmp_path_factory.mktemp("seeing"), hidden=32, initial=0.2)


@pytest.fixture(scope="module")
def processor(folder):
    return hf_processor(str(folder))


def qwen3(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def qwen2_5(folder):
    """A model of the same sizes, for the same processor."""
    given = qwen3(folder).config
    text = {**given.text_config.to_dict(), "model_type": "qwen2_5_vl_text", "initializer_range": 0.2}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    vision = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=2, patch_size=8, out_hidden_size=32)
    vision |= dict(window_size=32, fullatt_block_indexes=[1], initializer_range=0.2)
    ids = {name: value for name, value in given.to_dict().items() if name.endswith("_token_id")}
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return Qwen2_5_VLForConditionalGeneration(config).eval()


@pytest.fixture(scope="module", params=[qwen3, qwen2_5])
def model(request, folder):
    return request.param(folder)


def picture(colour, width=48, height=32):
    image = Image.new("RGB", (width, height), colour)
    image.putpixel((5, 5), (255, 255, 255))
    return image


def prompt_of(processor, text, *images):
    inputs = processor(text=[text], images=list(images) or None, return_tensors="pt")
    return inputs["input_ids"][0].tolist()


def trained_log_probs(model, processor, prompt, images, tokens):
    """One forward over prompt and reply, with the positions that transformers computes."""
    ids = torch.tensor([[*prompt, *tokens]])
    seen = processor.image_processor(images=images, return_tensors="pt") if images else {}
    with torch.no_grad():
        kinds = (ids == model.config.image_token_id).int()
        logits = model(input_ids=ids, mm_token_type_ids=kinds, **seen).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


REQUESTS = [
    ("what is this? ", []),
    (f"what is {SIGHT} this?", ["red"]),
    (f"what is {SIGHT} this?", ["blue"]),
    (f"what is {SIGHT} this?", ["red"]),
    (f"what is {SIGHT} and {SIGHT}", ["red", "blue"]),
    (f"what is {SIGHT} and {SIGHT}!", ["red", "red"]),
    (f"{SIGHT}{SIGHT} two", ["green", "red"]),
    ("what is that? ", []),
]


@pytest.mark.parametrize("rows", [1, 3, 256])
def test_requests_with_and_without_images_get_the_log_probs_of_the_trainer(model, processor, rows):
    batcher = ContinuousBatcher(
        model, max_length=256, decode=processor.tokenizer.decode, capacity=Capacity(rows=rows, prefill_tokens=64)
    )
    images, asked = Images(model, processor), []
    for number, (text, colours) in enumerate(REQUESTS):
        shown = [picture(colour, width=32 + 16 * place) for place, colour in enumerate(colours)]
        prompt = prompt_of(processor, text, *shown)
        sampling = RequestSampling(max_tokens=5 + number, ignore_eos=True, seed=number, stop_token_ids=(261, 262))
        asked.append((prompt, shown, batcher.submit(prompt, sampling, sight=images.read(prompt, shown, {}))))
        batcher.step()  # later requests copy prefixes of earlier ones
    while not batcher.idle:
        batcher.step()
    for prompt, shown, sample in asked:
        tokens = sample.tokens[:-1] if sample.tokens[-1] in (261, 262) else sample.tokens
        if tokens:
            expected = trained_log_probs(model, processor, prompt, shown, tokens)
            torch.testing.assert_close(torch.tensor(sample.log_probs[: len(tokens)]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "shown", "says"),
    [
        ("none", ["red"], "a prompt with 0 tokens of images\n  rule: its images have 6"),
        (f"{SIGHT} one", ["red", "red"], "a prompt with 6 tokens of images\n  rule: its images have 12"),
        (f"{SIGHT} one", [], "a prompt with 6 tokens of images\n  rule: its images have 0"),
        ("<|image_pad|>", ["red"], "a prompt that ends with an image"),
    ],
)
def test_a_prompt_that_does_not_fit_its_images_is_refused(model, processor, text, shown, says):
    prompt = prompt_of(processor, text, picture("red")) if "image_pad" in text else prompt_of(processor, text)
    with pytest.raises(RequestError, match=says):
        Images(model, processor).read(prompt, [picture(colour) for colour in shown], {})


async def test_the_server_serves_images_and_refuses_videos_and_images_of_a_model_of_text(folder, tmp_path, processor):
    threads = torch.get_num_threads()
    config = RolloutConfig(name=ENGINE, tensor_model_parallel_size=1, dtype="float32", max_model_len=128)
    seeing, reading = (
        TransformersServer(name, config, HFModelConfig(path=str(path)), RolloutMode.STANDALONE, 0, "cpu")
        for name, path in (("seeing", folder), ("reading", tiny_model(tmp_path, hidden=32)))
    )
    torch.set_num_threads(threads)
    prompt = prompt_of(processor, f"{SIGHT} one", picture("red"))

    def ask(server, colour="red", **media):
        return server.generate(prompt, {"max_tokens": 9, "seed": 1}, "r", image_data=[picture(colour)], **media)

    one, again, other = await asyncio.gather(ask(seeing), ask(seeing), ask(seeing, "blue"))
    assert one.token_ids == again.token_ids and one.log_probs != other.log_probs
    for refused, says in (
        (ask(seeing, video_data=["v"]), "video_data(.|\n)*text and images"),
        (ask(seeing, audio_data=["a"]), "audio_data"),
        (ask(reading), "images in a request to qwen2"),
    ):
        with pytest.raises(RequestError, match=says):
            await refused
