"""Pictures of boards on a grid, for agents that see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from verl_mas.workflow.client import Message

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = tuple[int, int, int]
LINE: Colour = (128, 128, 128)  # above and left of each cell


def drawn(rows: Sequence[str], colours: Mapping[str, Colour], cell: int) -> Image:
    """A square of `cell` by `cell` pixels for each letter, in its colour."""
    import numpy as np
    from PIL import Image

    cells = np.array([[colours[letter] for letter in row] for row in rows], np.uint8)
    pixels = cells.repeat(cell, axis=0).repeat(cell, axis=1)
    pixels[::cell] = pixels[:, ::cell] = LINE
    return Image.fromarray(pixels)


def asked(picture: Image, text: str) -> list[Message]:
    """A prompt with a picture above its text."""
    return [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": text}]}]
