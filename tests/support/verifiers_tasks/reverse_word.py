"""A single turn: the letters of a word, in reverse."""

import random

import verifiers.v1 as vf

__all__ = ["ReverseTaskset"]


class ReverseData(vf.TaskData):
    word: str


class ReverseTask(vf.Task[ReverseData]):
    @vf.reward(weight=0.8)
    async def right_letters(self, trace: vf.Trace) -> float:
        wanted = self.data.word[::-1]
        return sum(a == b for a, b in zip(wanted, trace.last_reply, strict=False)) / len(wanted)

    @vf.reward(weight=0.2)
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.word[::-1])

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class ReverseConfig(vf.TasksetConfig):
    letters: str = "abcdefgh"
    length: int = 3
    num_tasks: int = 64
    words: bool = True
    """Variant with an instruction, for language models."""


class ReverseTaskset(vf.Taskset[ReverseTask, ReverseConfig]):
    def load(self):
        chance, config = random.Random(0), self.config
        for _ in range(config.num_tasks):
            word = "".join(chance.choices(config.letters, k=config.length))
            prompt = f"Reverse the word {word}. Reply with the letters alone." if config.words else word
            yield ReverseTask(ReverseData(prompt=prompt, word=word), config.task)
