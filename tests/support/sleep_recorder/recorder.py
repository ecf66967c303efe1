"""The rules of vLLM's sleep mode: when an engine may sleep, wake and generate. Nothing is freed."""

from collections.abc import Callable

TAGS = frozenset({"weights", "kv_cache"})


class SleepRecorder:
    """Replaces the `sleep` and `wake_up` of an engine. A call out of order raises AssertionError.

    Level 1 keeps a copy of the weights, level 2 drops them: they must be sent again before the next request.
    """

    def __init__(self, running: Callable[[], int]):
        self._running = running
        self.asleep: frozenset[str] = frozenset()
        self.weights_lost = False
        self.events: list[str] = []

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        assert not self.asleep, f"sleep of an engine without {sorted(self.asleep)}"
        assert not self._running(), f"{self._running()} requests run, which sleep would abort"
        assert level in (1, 2), f"level {level}"
        self.asleep, self.weights_lost = TAGS, level == 2
        self.events.append(f"sleep {level}")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        woken = TAGS if tags is None else frozenset(tags)
        assert woken and woken <= self.asleep, f"wake_up of {sorted(woken)}, asleep are {sorted(self.asleep)}"
        self.asleep -= woken
        self.events.append(f"wake_up {' '.join(sorted(woken))}")

    def check_loads(self) -> None:
        assert "weights" not in self.asleep, "weights are written to an engine that is without them"
        self.weights_lost = False
        self.events.append("load")

    def check_serves(self) -> None:
        assert not self.asleep, f"a request to an engine without {sorted(self.asleep)}"
        assert not self.weights_lost, "a request to an engine that lost its weights"
