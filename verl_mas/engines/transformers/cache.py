"""A key-value cache to which rows are added, and from which they are removed, while the batch runs."""

from __future__ import annotations

from typing import cast

import torch
from transformers.cache_utils import Cache, DynamicLayer


class RowCache(Cache):
    """Row i holds the keys and values of the i-th running sequence, from column 0 without gaps.

    Per layer one buffer for keys and one for values, `[capacity rows, heads, capacity columns, head size]`; the
    first `rows` rows are in use. A decode step writes one column per row, each row at its own position, in place.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.rows = 0
        self._capacity = (0, 0)
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._positions = torch.empty(0, dtype=torch.long)
        self._columns = 0

    def reserve(self, rows: int, columns: int) -> None:
        """Allocate at least `rows` rows of `columns`; no row in use may be longer."""
        if rows > self._capacity[0] or columns > self._capacity[1]:
            self._capacity = (rows, columns)
            for number, (keys, values) in enumerate(self._buffers):
                # Layer by layer, so that one layer at a time is held twice.
                self._buffers[number] = self._resized(keys), self._resized(values)

    def append(self, prefilled: Cache, sources: list[int]) -> None:
        """Add a row for each entry of `sources`, the number of a row of `prefilled`."""
        new = slice(self.rows, self.rows + len(sources))
        for number, layer in enumerate(cast("list[DynamicLayer]", prefilled.layers)):
            assert layer.keys is not None and layer.values is not None
            for buffer, states in zip(self._buffer(number, layer.keys), (layer.keys, layer.values), strict=True):
                buffer[new, :, : states.shape[2]] = states[sources]
        self.rows = new.stop

    def append_empty(self, count: int) -> None:
        """Add rows of length zero."""
        self.rows += count

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its number."""
        self.rows -= 1
        if row != self.rows:
            for buffers in self._buffers:
                for buffer in buffers:
                    buffer[row] = buffer[self.rows]

    def clear(self) -> None:
        """Drop all rows and free the memory."""
        self._buffers, self.rows, self._capacity = [], 0, (0, 0)

    def aim(self, positions: torch.Tensor, columns: int) -> None:
        """Where the next forward writes in each row, and how many columns it reads."""
        self._positions, self._columns = positions, columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a model's attention calls: store the new column, return all columns."""
        keys, values = self._buffer(layer_idx, key_states)
        rows = torch.arange(self.rows, device=keys.device)
        keys[rows, :, self._positions] = key_states[:, :, 0]
        values[rows, :, self._positions] = value_states[:, :, 0]
        return keys[: self.rows, :, : self._columns], values[: self.rows, :, : self._columns]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._columns

    def _buffer(self, number: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self._buffers) <= number:
            self._buffers.append((self._allocated(like), self._allocated(like)))
        return self._buffers[number]

    def _allocated(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, because a masked column is still multiplied by 0, and 0 x NaN is NaN.
        rows, columns = self._capacity
        return like.new_zeros(rows, like.shape[1], columns, like.shape[3])

    def _resized(self, old: torch.Tensor) -> torch.Tensor:
        new = self._allocated(old)
        columns = min(old.shape[2], new.shape[2])
        new[: self.rows, :, :columns] = old[: self.rows, :, :columns]
        return new
