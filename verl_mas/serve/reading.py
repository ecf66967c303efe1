"""The files of a checkpoint, which may be damaged: what cannot be read is named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from verl_mas.errors import DiskError, MasError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a file, or of the files in a folder."""
    try:
        yield
    except MasError:  # some are ValueErrors
        raise
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        cause = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise DiskError(
            f"{path} cannot be read: {cause}",
            rule="it is as training wrote it, and holds data only: nothing in it is executed",
            fix="copy it again, or export another checkpoint of the run",
        ) from error


def read_record(path: Path, *keys: str) -> dict[str, object]:
    """A JSON object that has these keys."""
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
        if lacking := [key for key in keys if key not in found]:
            raise ValueError(f"it has no {', '.join(lacking)}")
    return found
