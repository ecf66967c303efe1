"""A tool: how many of a thing are there? The server of the tool knows the task."""

import verifiers.v1 as vf
from stock_tools import StockToolset

__all__ = ["StockTaskset"]
THINGS = {"apples": 3, "pears": 7, "plums": 12}


class StockData(vf.TaskData):
    thing: str
    stock: dict[str, int]


class StockConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class StockTask(vf.Task[StockData, vf.State, StockConfig]):
    @classmethod
    def toolsets(cls, config):
        return [StockToolset(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.stock[self.data.thing]))


class StockTasksetConfig(vf.TasksetConfig):
    task: StockConfig = StockConfig()


class StockTaskset(vf.Taskset[StockTask, StockTasksetConfig]):
    def load(self):
        return [
            StockTask(
                StockData(prompt=f"How many {thing}?", system_prompt="Use the tool.", thing=thing, stock=THINGS),
                self.config.task,
            )
            for thing in THINGS
        ]
