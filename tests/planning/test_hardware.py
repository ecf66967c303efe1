"""`--gpus` names machines."""

from __future__ import annotations

import json

import pytest

from verl_mas.errors import ConfigError
from verl_mas.planning.events import read_calibration
from verl_mas.planning.hardware import GIB, Hardware, parse_gpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8x80", (1, 8, 80)), ("2x8x80", (2, 8, 80)), ("8X141GB", (1, 8, 141)), ("1x80.5", (1, 1, 80.5))],
)
def test_machines_are_read(text, expected):
    found = parse_gpus(text)
    assert (found.nodes, found.gpus_per_node, found.gb) == expected
    assert found.card / GIB == pytest.approx(0.99 * found.gb)


@pytest.mark.parametrize("text", ["", "8", "0x80", "8x0", "1x0.5", "1x2x3x4", "-8x80", "eightx80"])
def test_what_names_no_machine_is_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="8x80") as error:
        parse_gpus(text)
    assert error.value.value == f"--gpus {text}"


def test_cards_with_error_correction_in_their_memory_have_less_than_others():
    found = {gb: parse_gpus(f"1x{gb}").card / GIB for gb in (24, 40, 48, 80)}
    assert found == {24: 22.5, 40: pytest.approx(39.6), 48: 44.5, 80: pytest.approx(79.2)}


def test_all_nodes_have_the_same_gpus():
    assert Hardware(2, 8, 80).gpus == 16
    assert str(Hardware(2, 8, 80)) == "2 nodes of 8 GPUs of 80 GB (79.2 GiB usable)"


GOOD = {"gpu": "H100", "run": "+recipe=math/shared", "factors": {"rollout": 0.97, "update": 1.1}}


def test_what_was_measured_is_read_and_named(tmp_path):
    (tmp_path / "calibration.json").write_text(json.dumps(GOOD))
    found = read_calibration(tmp_path / "calibration.json")
    assert str(found) == "+recipe=math/shared on H100: rollout x 0.97, update x 1.10"
    assert Hardware(1, 8, 80, calibration=found).factors == GOOD["factors"] and Hardware(1, 8, 80).factors == {}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (json.dumps(GOOD | {"factors": {"updates": 1.1}}), "updates: 1.1"),
        (json.dumps(GOOD | {"factors": {"update": 0}}), "update: 0"),
        (json.dumps(GOOD | {"factors": {"update": "much"}}), "much"),
        (json.dumps(GOOD | {"factors": [1.1]}), "items"),
        (json.dumps(GOOD | {"card": 80}), "card"),
        (json.dumps([1]), "mapping"),
        ("{", "Expecting"),
        (None, "No such file"),
    ],
)
def test_a_calibration_that_is_none_is_refused_with_what_is_wrong(tmp_path, text, seen):
    file = tmp_path / "calibration.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=seen) as error:
        read_calibration(file)
    assert error.value.value.startswith(f"--calibration {file}: ") and "log-probs" in error.value.rule
