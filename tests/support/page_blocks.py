"""The blocks of code in a page, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file whose content the block is: `# my_team.py` in its first line."""
        named = re.match(r"(?:# @package.*\n)?# ([\w/]+\.(?:py|yaml))\n", self.text)
        return named and named.group(1)


def fenced(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, text[: m.start()].count("\n") + 2, m.group(1), m.group(2)) for m in FENCE.finditer(text)]


def indented(page: Path) -> list[Block]:
    lines = enumerate(FENCE.sub(lambda m: "\n" * m.group().count("\n"), page.read_text()).splitlines(), 1)
    found = []
    for is_code, group in groupby(lines, key=lambda item: item[1].startswith("    ")):
        code = list(group)
        if is_code:
            found.append(Block(page, code[0][0], "bash", "".join(f"{line[4:]}\n" for _, line in code)))
    return found


def commands(block: Block) -> list[list[str]]:
    """Split each command into words. The last word is `...` where a user adds arguments."""
    lines = [re.sub(r" \.\.\..*", " ...", line) for line in block.text.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]
