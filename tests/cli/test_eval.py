import io

from commands import output_of
from rich.console import Console

from verl_mas.cli.eval import tables


def test_a_source_is_shown_with_its_control_and_its_name_is_no_markup_and_no_order_to_a_terminal():
    numbers = {"mean@1": 0.5, "mean@1/low": 0.25, "mean@1/high": 0.75}
    sources = {"a [/b] \x1b[2J": numbers, "clues": numbers, "clues_shuffled": numbers}
    team = {"dir": "team", "tasks": 1, "sessions": 1, "failed": 0, "sources": sources, "agents": {}}
    out = Console(file=io.StringIO(), width=200)
    for table in tables([team], {}):
        out.print(table)
    text = out.file.getvalue()
    assert "a [/b] \\x1b[2J" in text and "\x1b" not in text and "0.250 to 0.750" in text
    assert text.count("clues_shuffled (control of clues)") == 1


def test_the_file_of_the_tasks_is_not_replaced_by_sessions(capsys):
    printed = output_of(capsys, "eval", "team", "--data", "a/../rows.parquet", "--out", "rows.parquet", code=2)
    assert "the file of --data" in printed
    printed = output_of(capsys, "eval", "team", "--data", "rows.parquet", "--compare", "a/../team", code=2)
    assert "it is another team than DIR" in printed
