from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer
from verl_mas.checks.verl.chat_template import ChatTemplate

# What the templates of published models use: loops with controls, JSON, special tokens, generation marks.
TEMPLATE = """{{ bos_token }}{%- for message in messages %}
{%- if message.role == "tool" %}{% continue %}{% endif %}
<{{ message.role }}>{{ message.content }}{% generation %}!{% endgeneration %}
{%- endfor %}
{{ {"a": "<é>"} | tojson }}{% if not thinking %} plain{% endif %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
MESSAGES = [{"role": "system", "content": "s"}, {"role": "tool", "content": "t"}, {"role": "user", "content": "a b"}]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_prompt_is_rendered_and_counted_as_the_models_tokenizer_does(letters, tmp_path, thinking):
    tokenizer = AutoTokenizer.from_pretrained(letters / "model")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    chat = ChatTemplate.of(tmp_path)
    assert chat is not None
    text = chat.render(MESSAGES, {"thinking": thinking})
    settings = {"add_generation_prompt": True, "thinking": thinking}
    assert text == tokenizer.apply_chat_template(MESSAGES, tokenize=False, **settings)
    ids = tokenizer.apply_chat_template(MESSAGES, tokenize=True, return_dict=False, **settings)
    assert chat.length(text, limit=1) == len(ids)
    assert chat.length(text, limit=10_000) is None


def test_the_default_of_several_templates_is_used(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    chat = ChatTemplate.of(tmp_path)
    assert chat is not None and chat.render(MESSAGES, {}) == "s"
    custom = ChatTemplate.of(tmp_path, "mine")
    assert custom is not None and custom.render(MESSAGES, {}) == "mine"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if %}", "line 1"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{{ messages[9].role }}", "no element 9"),
    ],
)
def test_a_template_that_fails_says_why(tmp_path, template, says):
    chat = ChatTemplate.of(tmp_path, template)
    assert chat is not None
    with pytest.raises(ValueError, match=says):
        chat.render(MESSAGES, {})
