"""The texts of single tokens, which together are the text of all."""

from __future__ import annotations

import pytest

from verl_mas.rollout.trajectories import TextPerToken


class Pieces:
    """A tokenizer of characters, the space before the first one of which is dropped, as some decoders do."""

    def __init__(self):
        self.decoded = 0

    def encode(self, text, add_special_tokens=True):
        return [ord(character) for character in text]

    def decode(self, ids, skip_special_tokens=False):
        self.decoded += 1
        return "".join(map(chr, ids)).removeprefix(" ")


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 🎉🎉", " two  spaces "])
def test_together_they_are_the_text_and_a_character_belongs_to_its_last_token(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = TextPerToken(tokenizer)(ids)
    assert "".join(texts) == text and len(texts) == len(ids)
    assert len(ids) == len(text.encode()), "a token is a byte, so that characters have several"
    assert [piece for piece in texts if piece] == list(text)


def test_bytes_that_are_no_text_are_shown_as_such_and_cost_no_token(tokenizer):
    ids = tokenizer.encode("aé", add_special_tokens=False)
    texts = TextPerToken(tokenizer)([*ids[:2], *ids[:1]])
    assert len(texts) == 3 and texts[0] == "a" and "".join(texts).startswith("a\ufffd")
    assert TextPerToken(tokenizer)(ids[:2])[1] == "\ufffd"


def test_spaces_at_the_start_of_a_token_are_kept_and_a_token_is_decoded_once():
    pieces = Pieces()
    texts = TextPerToken(pieces)
    assert texts(pieces.encode(" a b")) == [" ", "a", " ", "b"]
    before = pieces.decoded
    assert texts(pieces.encode("b a ")) == ["b", " ", "a", " "] and pieces.decoded == before
