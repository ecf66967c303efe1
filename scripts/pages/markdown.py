"""Text of the code in a page, and tables."""

from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Outside of code, `<` would begin a tag."""
    parts = text.split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def cell(text: str) -> str:
    """In a cell of a table, where `|` would end it."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The cells are as the page has them."""
    written = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (columns, *rows)]
    return "\n".join([written[0], f"|{'---|' * len(columns)}", *written[1:]])
