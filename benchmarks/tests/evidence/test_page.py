from __future__ import annotations

from pathlib import Path

import pytest


def run(before, after, **series):
    return {"success": {"0": before, "30": after}, "seconds": 120, "series": {"rows/real": [100.0] * 30, **series}}


@pytest.fixture
def page(evidence):
    return evidence("page")


@pytest.fixture
def tables(evidence):
    return evidence("tasks.plan_path_tables")


@pytest.fixture
def results(evidence):
    both = {name: [1.0] * 30 for role in ("planner", "executor")
            for name in (f"policy/{role}/actor/grad_norm", f"agent/{role}/group/inflation")}  # fmt: skip
    team = {**both, "policy/planner/actor/grad_norm": [3.0] * 30, "agent/planner/group/inflation": [9.0] * 30}
    return evidence("tables").Results(
        {
            "at_grpo_shared": {0: run(0.5, 0.9), 1: run(0.6, 0.8)},
            "agent_grpo": {0: run(0.5, 0.7), 1: run(0.6, 0.6)},
            "uneven_factor10_team_grpo": {0: run(0.5, 0.6, **team)},
            "uneven_factor10_agent_grpo": {0: run(0.5, 0.8, **both)},
            "at_grpo_per_role": {0: run(0.5, 0.9)},
            "roles_kept": {0: {"success": {"0": 0.9}}},
            "roles_swapped": {0: {"success": {"0": 0.1}}},
        }
    )


def test_the_table_of_arms_has_intervals_over_seeds_and_paired_differences(tables, results, tmp_path):
    table = tables.compared(results, tables.DENSE_ARMS, tmp_path / "dense.png")
    assert "| `agent_grpo` | 2 | 0.550 ± 0.635 | 0.650 ± 0.635 | -0.200 ± 0.000 | 3,000 |" in table
    assert (tmp_path / "dense.png").exists() and "team_grpo" not in table


def test_the_table_of_sparse_arms_has_the_difference_from_their_dense_ones(tables, results, tmp_path):
    results.runs["agent_grpo_sparse"] = {0: run(0.5, 0.6), 1: run(0.5, 0.5)}
    table = tables.compared(results, tables.SPARSE_ARMS, tmp_path / "sparse.png", ("dense", tables.DENSE_ARMS))
    assert "less the same, dense, paired | replies per run |" in table
    assert "| `agent_grpo_sparse` | 2 | 0.500 ± 0.000 | 0.550 ± 0.635 |  | -0.100 ± 0.000 | 3,000 |" in table


def test_the_table_of_gradients_has_the_lemmas_factor_and_the_measured_one(tables, results, tmp_path):
    table = tables.unevenness(results, tmp_path / "uneven.png")
    row = "| x 10 | `team_grpo` | 1 | planner | 9.00 | 9.00 | 0.000 | 0.600 |"
    assert row in table and (tmp_path / "uneven.png").exists()


def test_the_table_of_roles_starts_with_the_untrained_team(tables, results):
    lines = tables.roles(results).splitlines()
    assert lines[2].startswith("| untrained | 1 | 0.500") and "| roles swapped | 1 | 0.100 | -0.800 | 0.100 |" in lines


def test_the_page_keeps_its_words_and_says_what_has_not_run(page, results, tmp_path):
    names = page.sections(results, tmp_path)
    marks = "".join(f"Words.\n<!-- {name} -->\noutdated\n<!-- /{name} -->\n" for name in names)
    file = tmp_path / "EVIDENCE.md"
    file.write_text(marks)
    for _ in range(2):
        page.write(file, results)
    text = file.read_text()
    assert text.count("Words.") == len(names) and "outdated" not in text
    assert "<!-- sparse -->\nNot yet run.\n<!-- /sparse -->" in text
    assert "- `agent_grpo`: seeds 2, 3, 4" in text


def test_the_page_of_the_repository_has_a_place_for_every_table(page, results, tmp_path):
    file = tmp_path / "EVIDENCE.md"
    file.write_text((Path(__file__).parents[3] / "benchmarks/EVIDENCE.md").read_text())
    page.write(file, results)
    assert "| roles swapped |" in file.read_text()


def test_a_page_without_a_place_for_a_table_is_refused(page):
    with pytest.raises(ValueError, match="dense"):
        page.between("nothing", "dense", "table")


def test_the_table_of_signals_has_each_agents_share_over_the_steps_with_a_group(evidence):
    tables, task = evidence("tables"), evidence("tasks.unequal_roles")
    numbers = {"signal_share": [0.2, None, 0.4], "inflation": [0.8, 0.8, 0.8], "sigma": [0.3, 0.5, 0.4]}
    series = {f"agent/{agent}/group/{name}": values for agent in ("scout", "judge") for name, values in numbers.items()}
    results = tables.Results({"unequal_pair_agent_grpo": {0: {"success": {"6": 0.9}, "series": series}}})
    table = tables.signals(results, task.PAIR)
    assert "| `unequal_pair_agent_grpo` | scout | 0.300 | 0.800 | 0.300 |" in table and table.count("\n") == 3


def test_an_arm_that_did_not_validate_its_start_has_no_untrained_number(evidence):
    tables, task = evidence("tables"), evidence("tasks.unequal_roles")
    ended = {"success": {"6": 0.9}, "series": {}}
    results = tables.Results({"unequal_pair_agent_grpo": {0: ended, 1: ended}})
    table = tables.learning(results, task.PAIR, "unequal_pair_agent_grpo")
    assert "| `unequal_pair_agent_grpo` | 2 |  | 0.900 ± 0.000 |" in table
