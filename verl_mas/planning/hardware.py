"""The machines of a run, as given by `--gpus`."""

import re
from dataclasses import dataclass
from pathlib import Path

from verl_mas.errors import ConfigError

GIB = 2**30
# Usable GiB per nominal GB: CUDA reports 79.2 GiB for a card of 80 GB, and the same share for cards of 40 and 141 GB.
USABLE = 0.99
# Nominal GB -> usable GiB of cards that keep error-correction data in their memory (L4 and A10G; L40S).
WITH_ECC: dict[float, float] = {24: 22.5, 48: 44.5}
# A run fits if its peak memory is at most this share of the card. The rest is for fragmentation and unknown needs.
SAFE = 0.92


@dataclass(frozen=True)
class Hardware:
    """Nodes of equal GPUs."""

    nodes: int
    gpus_per_node: int
    gb: float  # The nominal memory of one GPU

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def card(self) -> float:
        """Bytes of a GPU's memory that processes can use."""
        return WITH_ECC.get(self.gb, USABLE * self.gb) * GIB

    def __str__(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{self.gpus_per_node} GPUs of {self.gb:g} GB ({self.card / GIB:.1f} GiB usable)"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, determined from its driver without torch."""
    return Path("/proc/driver/nvidia/version").exists()


def parse_gpus(text: str) -> Hardware:
    """Parse `8x80` (eight GPUs of 80 GB) or `2x8x80` (two such nodes)."""
    number = r"[1-9]\d*"
    found = re.fullmatch(rf"(?:({number})x)?({number})x({number}(?:\.\d+)?)", text.strip().lower().removesuffix("gb"))
    if found is None:
        rule = "it is GPUs x GB of each, or nodes x GPUs per node x GB of each, in whole numbers from 1"
        fix = "write --gpus 8x80 for eight GPUs of 80 GB, --gpus 2x8x80 for two such nodes"
        raise ConfigError(f"--gpus {text}", rule=rule, fix=fix)
    nodes, gpus, gb = found.groups(default="1")
    return Hardware(int(nodes), int(gpus), float(gb))
