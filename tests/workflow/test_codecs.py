"""Codecs raise nothing, read no malformed text as a value, and parse every text that they render."""

import random
import re
import string
import time

import pytest
from hostile_replies import Verdict

from verl_mas.config.hydra.recipe.split_clues.states import Letters
from verl_mas.errors import DataError
from verl_mas.workflow.codecs import ActionList, Boxed, CodeBlock, JsonBlock, Malformed, Tag

MOVES = ActionList(("up", "down", "left", "right"))
CODECS = {
    "tag": Tag(),
    "choice": Verdict,
    "boxed": Boxed(),
    "code": CodeBlock(),
    "json": JsonBlock({"move": str}),
    "actions": MOVES,
    "letters": Letters("abcdejnoprtuvw", 9, "answer"),
}
PIECES = (
    "<verify>reject</verify>", "```python\nx = 1\n```\n", "<answer>", "</answer>", "<verify>",
    "</verify>", "approve", "reject", "APPROVE", "\\boxed{", "{", "}", "\\",
    "\\}", "```", "```python", "```json", "\n", '{"move": "up"}', '{"move": NaN}', "[[[[", '"', "<think>", "</think>",
    "<actions>", "</actions>", "up", "down,", "fly", "", " ", "\x00",
    "\ud800", "\u0663", "\u017f", "\u0130", "42", "x" * 50,
)  # fmt: skip


def adversarial(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "".join(rng.choice(string.printable) for _ in range(rng.randrange(60)))
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))


def value_for(name: str, rng: random.Random):
    words = " ".join("".join(rng.choice(string.ascii_letters + "{}\\\"'<>é") for _ in range(5)) for _ in range(3))
    return {
        "tag": words,
        "choice": rng.choice(list(Verdict)),
        "boxed": words,
        "code": words + "\n    " + words,
        "json": {"move": words, "n": rng.randrange(9), "list": [words, None, True, 0.5]},
        "actions": [rng.choice(MOVES.actions) for _ in range(rng.randrange(1, 9))],
        "letters": "".join(rng.choices("abcdejnoprtuvw", k=rng.randrange(1, 4))),
    }[name]


@pytest.mark.parametrize("name", CODECS)
def test_ten_thousand_strings_raise_nothing_and_every_parsed_value_can_be_rendered(name):
    codec, rng, read = CODECS[name], random.Random(7), 0
    for _ in range(10_000):
        value = codec.parse(adversarial(rng))
        if isinstance(value, Malformed):
            # A malformed value equals only itself, so it cannot win a vote.
            assert not value and value.reason and value != Malformed(value.reason)
        else:
            read += 1
            assert codec.parse(codec.render(value)) == value
    assert read > 0, "the strings must also reach the good path"


@pytest.mark.parametrize("name", CODECS)
def test_ten_thousand_values_are_parsed_back_or_refused(name):
    codec, rng, carried = CODECS[name], random.Random(3), 0
    for _ in range(10_000):
        value = value_for(name, rng)
        try:
            text = codec.render(value)
        except DataError:
            continue
        carried += 1
        assert codec.parse(f"I think so.\n{text}\nDone.") == value if name != "json" else codec.parse(text) == value
    assert carried > 5_000 and len(codec.prompt()) > 20


@pytest.mark.parametrize("name", CODECS)
def test_two_different_answers_are_malformed_and_the_same_one_twice_is_not(name):
    codec = CODECS[name]
    one, other = {
        "choice": (Verdict.APPROVE, Verdict.REJECT),
        "actions": (["up"], ["down"]),
        "json": ({"move": "a"}, {"move": "b"}),
    }.get(name, ("a", "b"))
    assert codec.parse(f"{codec.render(one)}\n{codec.render(one)}") == one
    assert isinstance(codec.parse(f"{codec.render(one)}\n{codec.render(other)}"), Malformed)


@pytest.mark.parametrize("name", CODECS)
def test_text_in_a_thought_is_not_an_answer(name):
    codec = CODECS[name]
    value = value_for(name, random.Random(0)) if name in ("choice", "actions", "json", "letters") else "plain"
    text = codec.render(value)
    assert codec.parse(f"<think>{text}</think>\n{text}") == value
    assert isinstance(codec.parse(f"<think>\n{text}\n"), Malformed), "a thought that was cut off"
    assert isinstance(codec.parse(f"\n{text}\n</think> hm"), Malformed)
    assert isinstance(codec.parse(f"<think>\n</think>\n{text}\n</think> hm"), Malformed), "it ends at the last mark"


LETTERS = Letters("abcdefgh", 3, None)
MALFORMED = {
    # Not an approval.
    Verdict: ("", "approve", "<verify>approve", "approve</verify>", "<verify></verify>", "<verify>approved</verify>",
              "<verify>approve or reject</verify>", "<verify>not approve</verify>",
              "<verify><verify>approve</verify></verify>"),
    Boxed(): (r"\boxed{1 \boxed{7}}",),
    MOVES: [f"<actions>{text}</actions>" for text in ("upup", "up-down", "up fly", "", "up" + ", up" * 64)],
    LETTERS: ("", "i", "abcd", "ab c!", "a b cc", "message"),
}  # fmt: skip


@pytest.mark.parametrize(("codec", "text"), [(codec, text) for codec, texts in MALFORMED.items() for text in texts])
def test_unreadable_text_is_malformed(codec, text):
    assert isinstance(codec.parse(text), Malformed)


LONG = {Boxed(): ("\\boxed{1}", "\\boxed{{", "{}"), Tag(): ("<answer>1</answer>", "<answer>")}


@pytest.mark.parametrize(("codec", "piece"), [(codec, piece) for codec, pieces in LONG.items() for piece in pieces])
def test_two_megabytes_are_read_in_one_pass(codec, piece):
    """Replies are read in the event loop that all sessions share."""
    text = piece * (2_000_000 // len(piece))
    started = time.process_time()
    value = codec.parse(text)
    # A pass takes a fraction of a second; copying the rest for each piece takes minutes.
    assert time.process_time() - started < 10
    assert value == "1" if "1" in piece else isinstance(value, Malformed)


@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        ({}, ["[" * 100_000, '{"a": ' * 100_000, *(f'{{"a": {n}}}' for n in ("1e999", "-1e999", "NaN", "Infinity"))]),
        ({"move": str}, ['{"move": true}', '{"move": 1}', "{}"]),
        ({"move": int}, ['{"move": true}']),
    ],
    ids=["numbers and depth", "text", "number"],
)
def test_json_is_neither_deep_nor_infinite_and_its_keys_have_their_types(keys, texts):
    assert all(isinstance(JsonBlock(keys).parse(text), Malformed) for text in texts)
    assert JsonBlock().parse('{"a": 1e99}') == {"a": 1e99}


CELLS = ActionList(re.compile("[a-d][1-4]"), tag=None, help="a letter and a digit")


@pytest.mark.parametrize(
    ("codec", "text", "value"),
    [
        (Boxed(), r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (MOVES, '<actions>["UP", "left"]</actions>', ["up", "left"]),
        (Letters("abcdefgh", 3, "message"), "So: <message>C, e, f</message>", "cef"),
        (LETTERS, " cef ", "cef"),
        (CELLS, "a1, [b2]c3\n", ["a1", "b2", "c3"]),
    ],
)
def test_boxes_hold_braces_actions_come_as_a_python_list_and_letters_in_any_case(codec, text, value):
    assert codec.parse(text) == value
    assert CELLS.render(["a1", "b2"]) == "a1b2" and "a letter and a digit" in CELLS.prompt()
    assert isinstance(CELLS.parse("a1 A1"), Malformed), "a pattern has its own case"


@pytest.mark.parametrize("actions", [("up", "UP"), ("go up",), re.compile("[UD]")])
def test_ambiguous_actions_and_a_pattern_without_help_are_refused(actions):
    with pytest.raises(DataError):
        ActionList(actions)
