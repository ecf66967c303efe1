from pathlib import Path
from types import SimpleNamespace

from verl.single_controller.ray import base

from verl_mas.engines import platform
from verl_mas.engines.platform.process_group import AFTER, BEFORE, DIFF

PATCHES = Path(__file__).parents[3] / "patches"


def test_the_patch_and_its_runtime_form_change_the_same_line():
    lines = (PATCHES / DIFF).read_text().partition("--- a/verl/utils/distributed.py")[2].splitlines()
    removed = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert removed and [line.replace(BEFORE, AFTER) for line in removed] == added


def test_a_rendezvous_is_at_a_port_that_the_kernel_gives_to_no_connection(monkeypatch, tmp_path):
    asked = []

    class Chosen:
        def options(self, **where):
            return self

        def remote(self, master_port_range):
            asked.append(master_port_range)
            return verls(master_port_range)

    verls = vars(base.get_master_addr_port)["_function"]
    monkeypatch.setattr(base, "get_master_addr_port", Chosen())
    monkeypatch.setattr(base.ray, "get", lambda found: found)
    monkeypatch.setattr(base, "PlacementGroupSchedulingStrategy", lambda **where: None)
    low = int(platform.RANGE.read_text().split()[0])
    for _ in range(20):
        group = SimpleNamespace(_master_addr=None, _master_port=None)
        getattr(base.RayWorkerGroup, platform.CHOOSES_PORT)(group, None)
        assert platform.FIRST_PORT <= int(vars(group)["_master_port"]) < low
    assert len({first for first, _ in asked}) > 10
    monkeypatch.setattr(platform, "RANGE", tmp_path / "range")
    assert platform.unused_ports() is None
    platform.RANGE.write_text("1024\t65535\n")
    assert platform.unused_ports() is None
