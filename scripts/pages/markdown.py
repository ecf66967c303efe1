"""Text of the code in a page."""


def plain(text: str) -> str:
    """Outside of code, `<` would begin a tag."""
    parts = text.split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def cell(text: str) -> str:
    """In a cell of a table, where `|` would end it."""
    return plain(" ".join(text.split())).replace("|", "\\|")
