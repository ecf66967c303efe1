"""A server of the embedded engine that records events of verl's engines: start, sleep, wake up and generate.

Each event says which parts of the memory (context, weights, KV cache) it takes, frees or needs.
"""

from __future__ import annotations

from typing import Any

from ledger.book import Book
from ledger.events import CONTEXT, KV, WEIGHTS, Event, Holder
from verl_mas.config.engine_tag import EngineTag
from verl_mas.engines.transformers.server import TransformersServer

TAGS = {"weights": WEIGHTS, "kv_cache": KV}


class LedgerServer(TransformersServer):
    def __init__(self, name: str, config: Any, model_config: Any, mode: Any, replica_rank: int, device: str):
        super().__init__(name, config, model_config, mode, replica_rank, device)
        policy = EngineTag.of(config).policy
        self._book = Book.of_this_run()
        self._holder = Holder("engine", policy, replica_rank)
        self._card = self._book.card_of(Holder("trainer", policy, replica_rank))
        self._generated = False  # Whether it has generated since it last woke up.
        self._report("start", CONTEXT, WEIGHTS, KV)

    async def sleep(self) -> None:
        await super().sleep()
        self._generated = False
        self._report("sleep", free=self._released)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        released = self._released
        await super().wake_up(tags)
        self._report("wake up", *(name for name in released if name not in self._released))

    @property
    def _released(self) -> tuple[str, ...]:
        return tuple(TAGS[tag] for tag in TAGS if tag in self._asleep)

    async def update_weights(self, bucket: Any, last: bool, global_steps: int | None = None) -> None:
        if last:
            self._report("receive weights", needs=(WEIGHTS,))
        await super().update_weights(bucket, last, global_steps)

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        if not self._generated:
            self._generated = True
            self._report("generate", needs=(WEIGHTS, KV))
        return await super().generate(*args, **kwargs)

    def _report(self, what: str, *take: str, free: tuple[str, ...] = (), needs: tuple[str, ...] = ()) -> None:
        self._book.write(Event(what, self._card, self._holder, take, free, needs))
