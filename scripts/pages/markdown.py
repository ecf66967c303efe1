"""Text of the code in a page, and tables."""

from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Escape `<` outside of code, where it would begin a tag."""
    parts = text.split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def cell(text: str) -> str:
    """Escape `|`, which would end a cell of a table."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table whose cells are Markdown already."""
    written = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (columns, *rows)]
    return "\n".join([written[0], f"|{'---|' * len(columns)}", *written[1:]])
