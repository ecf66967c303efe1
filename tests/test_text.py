from __future__ import annotations

import json

import orjson

from verl_mas.text import all_encodable, encodable

LONE = json.loads('"half \\ud83d"')


def test_a_lone_surrogate_becomes_text_that_every_file_takes():
    assert encodable(LONE) == "half \\ud83d"
    assert encodable("whole \U0001f600 \0") == "whole \U0001f600 \0"


def test_texts_inside_a_value_are_made_encodable_and_the_rest_is_kept():
    value = {LONE: [LONE, 1, None], "b": (LONE, {"c": True})}
    clean = {"half \\ud83d": ["half \\ud83d", 1, None], "b": ("half \\ud83d", {"c": True})}
    assert all_encodable(value) == clean
    orjson.dumps(all_encodable(value))
