"""The training path of a policy: the kernels for attention and log-probs in verl 0.9.1, and their costs.

With `use_fused_kernels`, log-probs are computed without materialising the logits. Otherwise verl uses flash-attn's
cross entropy if that package is installed, whichever attention is used. VERL_DISABLE_FLASH_ATTN_CE=1 disables this
cross entropy, and `full_determinism` sets that variable. In all other cases verl uses its own function, which
`verl_mas.engines.platform.log_probs` replaces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION
from verl_mas.config.run import View
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.planning.model_folder import fields

FUSED, FLASH, BLOCKS = "fused kernels", "flash-attn's cross entropy", "blocks"
# Bytes read and written per bfloat16 logit, summed over all kernels of a path: (for log-probs alone, for log-probs and
# their gradient).
TRAFFIC = {FUSED: (66, 126), FLASH: (2, 6), BLOCKS: (30, 58)}
# The share of its memory bandwidth that a GPU reaches in these kernels.
STREAMED = 0.8
# The speed of attention kernels with a mask, as a share of flash-attn's speed: arXiv 2307.08691, figure 4.
MASKED = 0.5
PACKAGE = "flash_attn"


@dataclass(frozen=True)
class TrainingPath:
    attention: str = DEFAULT_ATTENTION
    log_probs: str = FLASH
    packed: bool = True  # Whether rows of a micro batch are concatenated without padding

    @property
    def masked(self) -> bool:
        """Whether attention has a mask of all pairs of tokens of a micro batch. Without flash-attn, packed rows need
        such a mask."""
        return self.packed and not is_flash(self.attention)

    @property
    def fastest(self) -> TrainingPath:
        """The training path of the same policy if flash-attn were installed."""
        return TrainingPath(log_probs=FUSED if self.log_probs == FUSED else FLASH, packed=self.packed)

    def keys(self, row: float, batch: float) -> float:
        """Number of keys that a token is compared with. For kernels slower than flash-attn, this is the number of keys
        that flash-attn would compare in the same time. `row`, `batch`: the tokens of a row, and of a packed micro
        batch."""
        if is_flash(self.attention):
            return row / 2
        return (batch if self.packed else row) / MASKED

    def __str__(self) -> str:
        how = " over all pairs of tokens of a micro batch" if self.masked else ""
        assumed = " (assumed: it is not installed here)" if is_flash(self.attention) and not is_installed() else ""
        return f"attention: {self.attention}{how}{assumed}; log-probs: {self.log_probs}"


FASTEST = TrainingPath()


def training_path(config: DictConfig) -> TrainingPath:
    """Determine the path from a policy's view, which has the settings of the run."""
    model, used = config[SECTION].model, attention(config)
    return TrainingPath(used, _log_probs(config, used), bool(model.use_remove_padding))


def _log_probs(config: DictConfig, used: str) -> str:
    if config[SECTION].model.use_fused_kernels:
        return FUSED
    deterministic = OmegaConf.select(config, f"{SECTION}.actor.fsdp_config.full_determinism")
    disabled = os.environ.get("VERL_DISABLE_FLASH_ATTN_CE", "1" if deterministic else "0") == "1"
    # If flash-attn is the configured attention but is missing here, assume that the machines of the run have it. With
    # the package `kernels`, however, transformers downloads only the attention, without the cross entropy.
    there = is_installed() or (used == DEFAULT_ATTENTION and find_spec("kernels") is None)
    return FLASH if there and not disabled else BLOCKS


def by_rows(view: View) -> str | None:
    """Return why training cannot share prefixes of a policy's rows; None if it can, or if the model is unknown here."""
    from verl_mas.engines.platform.prefixes import not_covered

    known = fields(view.section("model"))
    ulysses = int(view.get("actor.ulysses_sequence_parallel_size") or 1)
    return not_covered(known, fused=bool(view.get("model.use_fused_kernels")), ulysses=ulysses) if known else None


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


def settle_attention(config: DictConfig) -> None:
    """Set torch's attention if no attention is set and flash-attn, which verl would use, is not installed."""
    unset = OmegaConf.select(config, ATTENTION) is None
    if unset and config.trainer.device != CPU and not is_installed():
        OmegaConf.update(config, ATTENTION, "sdpa", force_add=True)
