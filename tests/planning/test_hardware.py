"""`--gpus` names machines."""

import pytest

from verl_mas.errors import ConfigError
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
