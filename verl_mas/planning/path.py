"""The path of a policy's training: what computes attention and log-probs in verl 0.9.1, and what that costs.

Log-probs: `use_fused_kernels` has them computed without logits. Otherwise verl takes flash-attn's cross entropy if that
package is installed, whatever the attention is, unless VERL_DISABLE_FLASH_ATTN_CE=1, as `full_determinism` sets it; and
else a function that `verl_mas.platform.log_probs` replaces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION
from verl_mas.config.run import View
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.planning.model_folder import fields
from verl_mas.platform import DEVICE as CPU

FUSED, FLASH, BLOCKS = "fused kernels", "flash-attn's cross entropy", "blocks"
# Bytes that are read and written per logit, for log-probs alone and with their gradient: the sum over the kernels that
# each starts, of logits in bfloat16.
TRAFFIC = {FUSED: (66, 126), FLASH: (2, 6), BLOCKS: (30, 58)}
# The share of its bandwidth that a GPU reaches in them.
STREAMED = 0.8
# The speed of the kernels that take a mask, as a share of flash-attn's: arXiv 2307.08691, figure 4.
MASKED = 0.5
PACKAGE = "flash_attn"


@dataclass(frozen=True)
class TrainingPath:
    attention: str = DEFAULT_ATTENTION
    log_probs: str = FLASH
    packed: bool = True  # Without padding between the rows of a micro batch

    @property
    def masked(self) -> bool:
        """Whether attention has a mask of all pairs of tokens of a micro batch: that of any package but flash-attn."""
        return self.packed and not is_flash(self.attention)

    @property
    def fastest(self) -> TrainingPath:
        """The same with flash-attn."""
        return TrainingPath(log_probs=FUSED if self.log_probs == FUSED else FLASH, packed=self.packed)

    def keys(self, row: float, batch: float) -> float:
        """The keys that a token is compared with, as many as flash-attn would compare in the time. `row`, `batch`: the
        tokens of a row, and of a packed micro batch."""
        if is_flash(self.attention):
            return row / 2
        return (batch if self.packed else row) / MASKED

    def __str__(self) -> str:
        how = " over all pairs of tokens of a micro batch" if self.masked else ""
        assumed = " (assumed: it is not installed here)" if is_flash(self.attention) and not is_installed() else ""
        return f"attention: {self.attention}{how}{assumed}; log-probs: {self.log_probs}"


FASTEST = TrainingPath()


def training_path(config: DictConfig) -> TrainingPath:
    """The path that a policy's view, with the settings of a run, asks for."""
    model, used = config[SECTION].model, attention(config)
    return TrainingPath(used, _log_probs(config, used), bool(model.use_remove_padding))


def _log_probs(config: DictConfig, used: str) -> str:
    if config[SECTION].model.use_fused_kernels:
        return FUSED
    deterministic = OmegaConf.select(config, f"{SECTION}.actor.fsdp_config.full_determinism")
    disabled = os.environ.get("VERL_DISABLE_FLASH_ATTN_CE", "1" if deterministic else "0") == "1"
    # Where the package is missing and its attention is used, it is on the machines of the run; unless `kernels` is
    # installed, with which transformers downloads the attention alone.
    there = is_installed() or (used == DEFAULT_ATTENTION and find_spec("kernels") is None)
    return FLASH if there and not disabled else BLOCKS


def by_rows(view: View) -> str | None:
    """Why training cannot share prefixes of a policy's rows. None: it can, or the model is not known here."""
    from verl_mas.platform.prefixes import not_covered

    known = fields(view.section("model"))
    ulysses = int(view.get("actor.ulysses_sequence_parallel_size") or 1)
    return not_covered(known, fused=bool(view.get("model.use_fused_kernels")), ulysses=ulysses) if known else None


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


def settle_attention(config: DictConfig) -> None:
    """Choose torch's attention where none is set, and flash-attn, which verl would take, is not installed."""
    unset = OmegaConf.select(config, ATTENTION) is None
    if unset and config.trainer.device != CPU and not is_installed():
        OmegaConf.update(config, ATTENTION, "sdpa", force_add=True)
