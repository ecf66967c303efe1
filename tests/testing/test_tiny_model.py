import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mas.errors import ConfigError
from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model


def test_the_tiny_model_loads_as_any_hugging_face_folder_and_is_as_small_as_asked(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path, parameters=100_000))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert 80_000 < model.num_parameters() < 125_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    # The chat template is ChatML, and ends turns with the stop token.
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"


def test_any_string_round_trips_and_training_on_text_makes_its_words_shorter():
    plain, trained = byte_tokenizer(), byte_tokenizer(["left right up down"] * 50, vocabulary=300)
    for tokenizer in (plain, trained):
        assert tokenizer.decode(tokenizer("héllo 漢字\n\t right  ").input_ids) == "héllo 漢字\n\t right  "
    assert len(trained("right").input_ids) < len(plain("right").input_ids)


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    models = [tiny_model(tmp_path / str(number), seed=seed) for number, seed in enumerate([1, 1, 2])]
    weights = [AutoModelForCausalLM.from_pretrained(model).state_dict() for model in models]
    assert torch.equal(before, torch.get_rng_state())
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[0][name], weights[2][name])


def test_a_width_that_the_heads_do_not_divide_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hidden=65"):
        tiny_model(tmp_path, hidden=65)
