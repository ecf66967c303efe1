"""Several turns: a number is guessed, and the environment says whether it is higher or lower. Tasks without an end."""

import itertools
import random

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    @vf.metric
    async def guesses(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class GuessConfig(vf.TasksetConfig):
    most: int = 9


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    INFINITE = True

    def load(self):
        for seed in itertools.count():
            number = random.Random(seed).randint(0, self.config.most)
            prompt = f"Guess a number from 0 to {self.config.most}."
            yield GuessTask(GuessData(prompt=prompt, number=number), self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    turns: int = 4


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        reward, illegal = 0.0, 0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for turn in range(1, self.config.turns + 1):
                if segment.terminated:
                    break
                guess = segment.last_reply
                if guess == str(task.data.number):
                    reward = 1.0 - (turn - 1) / self.config.turns
                    break
                illegal += not guess.isdecimal()
                hint = "Not a number." if not guess.isdecimal() else self.hint(int(guess), task.data.number)
                if turn < self.config.turns:
                    segment = await interaction.turn(hint)
        interaction.trace.record_reward("found", reward, 1.0)
        interaction.trace.record_metric("illegal", illegal)

    def hint(self, guess, number):
        return "Higher." if guess < number else "Lower."
