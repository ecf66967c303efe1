"""The texts of single tokens, for records of what was sampled."""

from __future__ import annotations

from collections.abc import Sequence

from verl_mas.verl_.types import Tokenizer

# What decoders give for bytes that are not a character yet.
INCOMPLETE = "\ufffd"
# Of a character in UTF-8. A token that is still incomplete after so many is no character at all.
MOST_BYTES = 4


class TokenTexts:
    """`texts(ids)`: one text per token, which together are the text of all of them.

    A character of several tokens is the text of the last one. Most tokens are decoded once per worker.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # Some decoders drop the space at the start of a text.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._prefix = len(tokenizer.decode(self._before))

    def __call__(self, ids: Sequence[int]) -> list[str]:
        texts: list[str] = []
        open_ids: list[int] = []
        for token in ids:
            open_ids.append(int(token))
            text = self._one(open_ids[0]) if len(open_ids) == 1 else self._decoded(open_ids)
            if text.endswith(INCOMPLETE) and len(open_ids) < MOST_BYTES:
                texts.append("")
                continue
            texts.append(text)
            open_ids = []
        if open_ids:
            texts[-1] = self._decoded(open_ids)
        return texts

    def _one(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decoded([token])
        return self._known[token]

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([*self._before, *ids])[self._prefix :]
