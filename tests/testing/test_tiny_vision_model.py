import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText
from verl.utils.tokenizer import hf_processor, hf_tokenizer

from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.testing.tiny_vision_model import IMAGE, tiny_vision_model


def test_verl_loads_the_tiny_vision_model_with_its_processor_and_an_image_is_a_token_per_square(tmp_path):
    path = tiny_vision_model(tmp_path, tokenizer=byte_tokenizer(["left right"]), hidden=32, layers=1)
    model, processor = AutoModelForImageTextToText.from_pretrained(path), hf_processor(str(path))
    assert model.num_parameters() < 200_000
    picture = {"type": "image", "image": Image.new("RGB", (48, 32), "red")}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "left?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == hf_tokenizer(str(path)).apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[picture["image"]], return_tensors="pt")
    assert (inputs["input_ids"] == processor.tokenizer.convert_tokens_to_ids(IMAGE)).sum() == 3 * 2
    assert torch.isfinite(model(**inputs).logits).all()


@pytest.mark.parametrize("size", [(1, 1), (8000, 8000)])
def test_an_image_of_any_size_is_scaled_into_the_range_of_the_processor(tmp_path_factory, size):
    path = tmp_path_factory.getbasetemp() / "scaled"
    processor = hf_processor(str(path if path.is_dir() else tiny_vision_model(path, largest=64)))
    inputs = processor.image_processor(images=[Image.new("RGB", size)], return_tensors="pt")
    assert len(inputs["pixel_values"]) == (4 if size == (1, 1) else 64)
