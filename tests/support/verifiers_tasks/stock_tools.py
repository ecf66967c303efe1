"""The tools of `stock_room`, which verifiers runs in a process of their own."""

import verifiers.v1 as vf


class StockToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "stock"

    @vf.tool
    def count(self, thing: str) -> str:
        """How many of a thing there are."""
        return str({"apples": 3, "pears": 7, "plums": 12}.get(thing, 0))


if __name__ == "__main__":
    StockToolset.run()
