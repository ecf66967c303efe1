"""Splits of generated data sets into training and held-out items."""

import zlib

TRAIN, TEST = "train", "test"


def split_of(text: str) -> str:
    """Assign one text in five to the test split. Only the text decides, so no text is in both splits, whatever the
    seed."""
    return TEST if zlib.crc32(text.encode()) % 5 == 0 else TRAIN
