"""Functions that escape text for a Markdown page and write tables."""

from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Escape `<` in the text outside of code spans, because `<` would begin a tag there."""
    parts = text.split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def cell(text: str) -> str:
    """Return the text as a table cell on one line. `|` is escaped, because it would end the cell."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The cells must be Markdown already."""
    written = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (columns, *rows)]
    return "\n".join([written[0], f"|{'---|' * len(columns)}", *written[1:]])
