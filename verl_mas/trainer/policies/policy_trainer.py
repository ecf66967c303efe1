"""A trained policy: its part of a training step, as in verl's synchronous trainer, and its checkpoints."""

import math
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

import ray
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.protocol import DataProto
from verl.single_controller.ray import RayResourcePool
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_to_nested

from verl_mas.config.merge import CRITIC, set_mode
from verl_mas.config.run import View
from verl_mas.engines.platform.fsdp import METRIC as SHARED
from verl_mas.errors import UpdateFailed
from verl_mas.trainer.batching import UpdatePlan, fixed_sizes, plan, side_by_side, spread_padding
from verl_mas.trainer.checkpoint import Saved, writing
from verl_mas.trainer.loss_weights import Loss, on_policy, over_all_rows, step_weights, weighs_rows, weighted
from verl_mas.trainer.policies.local_policy import LocalPolicy, Workers
from verl_mas.trainer.policies.weight_folder import BACKEND
from verl_mas.trainer.step import COLUMNS, PolicyRows, gae, kept_share, without_zero_advantage
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.row import RowKey, is_padding

# Number of steps after a start in which the log-probs of engine and trainer are always compared: one step before the
# first update, and one step after it.
FIRST_STEPS = 2
# Metrics of an update that must be finite.
LOSSES = tuple(f"{part}/{name}" for part in ("actor", CRITIC) for name in ("loss", "grad_norm"))


class PolicyTrainer(LocalPolicy):
    """A trainable policy."""

    def __init__(self, view: View, config: DictConfig, pool: RayResourcePool, total_steps: int):
        """`config`: a copy of the view's configuration, placed on the pool."""
        self.view = view
        self.weighting = view.run.mas.loss.weighting  # how the loss weights the policy's rows
        self.plan: UpdatePlan | None = None
        self.prepared = 0  # number of steps since the start in which this policy had rows
        set_mode(config, self.weighting)
        super().__init__(view.name, config, pool, total_steps)

    def init(self) -> None:
        super().init()
        if loss := self.own_loss():
            self.actor_rollout_wg.set_loss_fn(loss)

    def own_loss(self) -> Loss | None:
        """Wrap verl's loss if rows have weights, rows are skipped, or old log-probs come from the update itself.

        Returns None if verl's loss is used unchanged.
        """
        verls = loss = partial(ppo_loss, config=omega_conf_to_dataclass(self.config.actor_rollout_ref.actor))
        if weighs_rows(self.weighting):
            loss = partial(weighted, loss=loss)
        if self.view.skips_zero_advantage:
            loss = partial(over_all_rows, loss=loss)
        if self.view.old_log_probs_every > 1:
            loss = partial(on_policy, loss=loss)
        return None if loss is verls else loss

    @property
    def saved(self) -> dict[str, Saved]:
        return {self.name: self}

    # -- the step -------------------------------------------------------------------------------------------

    def prepare(self, rows: Rows, metrics: dict[str, float]) -> Rows:
        """Pad and balance the rows, and compute the log-probs and values that the step needs."""
        rows.extra_info[row.TEMPERATURE] = self.config.actor_rollout_ref.rollout.temperature
        self.prepared += 1
        rows = self.balance(rows, metrics)
        if self.prepared <= FIRST_STEPS or self.global_steps % self.view.old_log_probs_every == 0:
            rows = self._compute_old_log_prob(rows, metrics=metrics)
        if self.use_reference_policy:
            rows = self._compute_ref_log_prob(rows, metrics=metrics)
        # verl sets this key for the reference log-probs of a LoRA policy, and does not remove it. The critic must not
        # get it, because a critic has no adapter to disable.
        rows.extra_info.pop("no_lora_adapter", None)
        return self._compute_values(rows, metrics) if self.use_critic else rows

    def balance(self, rows: Rows, metrics: dict[str, float]) -> Rows:
        """Pad the rows as the plan needs, and give every process the same amount of work."""
        self._rows = len(rows)
        rows = self._balance_batch(rows, metrics=metrics)
        assert self.plan is not None
        # Put the rows of a task next to each other, because they share prefixes. With several optimiser steps, keep the
        # order, because a new order would change which rows are in which optimiser step.
        if self.view.shares_prefixes and self.plan.updates == 1:
            tasks = [RowKey.parse(key).uid for key in rows.keys]
            rows.reorder(side_by_side(tasks, [tag[row.LENGTH] for tag in rows.tags], self.plan.data_parallel))
        rows.reorder(spread_padding(rows.tags, self.plan.data_parallel, self.plan.updates))
        return rows

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Plan the update; verl calls this while it balances the rows."""
        own_reference = self.use_reference_policy and not self.ref_in_actor
        sizes = fixed_sizes(self.config.actor_rollout_ref, reference=own_reference)
        self.plan = plan(self._rows, self.view.updates_per_step, dp_size, *sizes)
        return self.plan.multiple

    def read(self, rows: Rows, metrics: dict[str, float]) -> tuple[TensorDict, dict[str, Tensor]]:
        """Read masks and scores of the rows, and apply verl's rollout correction: importance weights and rejection by
        the ratio of the trainer's to the engine's probabilities. Also return the fields that the correction changes."""
        correction = self.config.algorithm.get("rollout_correction")
        corrects = correction and not correction.get("bypass_mode", False)
        computed = row.OLD_LOG_PROBS in (rows.fields or ())
        if not (corrects and computed and self.config.actor_rollout_ref.rollout.calculate_log_probs):
            return data_plane.read(rows, COLUMNS), {}
        data = data_plane.read(rows, [*COLUMNS, row.ROLLOUT_LOG_PROBS, row.OLD_LOG_PROBS])
        mask = data[row.RESPONSE_MASK]
        corrected, found = compute_rollout_correction_and_add_to_batch(
            DataProto(batch=data.to_padded_tensor()), correction
        )
        metrics.update(found)
        data[row.LOSS_MASK] = mask  # the mask before rejection; verl's means over tokens count its tokens
        if not correction.rollout_is and not correction.rollout_rs:
            return data, {}  # the configuration requests only metrics
        fields = [row.RESPONSE_MASK, row.ROLLOUT_WEIGHTS]
        changed = {name: response_to_nested(corrected.batch[name], mask) for name in fields if name in corrected.batch}
        data.update(changed)
        return data, changed

    def weigh(self, part: PolicyRows) -> None:
        """Compute the weights of the rows in the loss."""
        tokens = part.data[row.RESPONSE_MASK].sum(-1)
        part.weights = step_weights(self.weighting, part.batch.keys, part.batch.tags, tokens)

    def credit(self, part: PolicyRows) -> None:
        """Compute the rows' advantages from the values of the policy's critic, if it has one."""
        if self.use_critic:
            values = data_plane.read(part.batch, [row.VALUES])[row.VALUES]
            gae(part, values, self.config.algorithm.gamma, self.config.algorithm.lam)

    def rows_to_train(self, part: PolicyRows) -> Rows:
        """Return the rows of the update: all rows, or only the rows that add to the loss (`skip_zero_advantage`)."""
        assert self.plan is not None
        if not self.view.skips_zero_advantage:
            return part.batch
        kept = without_zero_advantage(part, self.plan.updates, self.plan.multiple)
        part.metrics["rows/skipped"] = len(part.batch) - len(kept)
        if len(kept) == len(part.batch):
            return part.batch
        counted = part.data.get(row.LOSS_MASK, part.data[row.RESPONSE_MASK]).sum(-1)
        actor = self.config.actor_rollout_ref.actor
        # verl's loss `sapo` always uses the mode seq-mean-token-mean.
        mode = "seq-mean-token-mean" if actor.policy_loss.loss_mode == "sapo" else actor.loss_agg_mode
        rows = self.balance(data_plane.select(part.batch, kept), {})
        rows.extra_info[row.KEPT_SHARE] = kept_share(counted, kept, mode)
        return rows

    def update(self, rows: Rows, metrics: dict[str, float], *, counted: float) -> None:
        """Do the optimiser steps of the policy and its critic. `counted`: divisor of the sum over all rows, in the loss
        modes in which verl takes the divisor from its caller."""
        if self.use_critic:
            self.train_critic(rows, metrics)
        if self.use_critic and self.global_steps < self.config.trainer.critic_warmup:
            metrics["updated"] = 0
        else:
            self.train_policy(rows, metrics, counted)
        engines = {"actor": self.config.actor_rollout_ref.actor.get("fsdp_config")}
        if self.use_critic:
            engines[CRITIC] = self.config.critic.get("fsdp")
        # verl uses a gradient scaler if the precision is fp16.
        scaled = [part for part, engine in engines.items() if PrecisionType.is_fp16(precision_of(engine))]
        check_finite(self.name, metrics, scaled)
        self.empty_cache()

    def train_critic(self, rows: Rows, metrics: dict[str, float]) -> None:
        """Train the critic with as many optimiser steps as the policy, on the same rows."""
        self._divide(rows, self.config.critic, sum(not is_padding(tag) for tag in rows.tags))
        metrics.update(_reported(self.critic_wg.train_mini_batch(rows).get(), "critic"))

    def train_policy(self, rows: Rows, metrics: dict[str, float], counted: float) -> None:
        actor = self.config.actor_rollout_ref.actor
        self._divide(rows, actor, counted)
        rows.extra_info.update(
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
            distillation_use_topk=False,
            distillation_only=False,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        output = _reported(self.actor_rollout_wg.update_actor(rows), "actor")
        if f"actor/{SHARED}" in output:
            output[f"rows/{SHARED}"] = output.pop(f"actor/{SHARED}")
        metrics.update(output)

    def _divide(self, rows: Rows, section: DictConfig, counted: float) -> None:
        """Tell verl how to divide the rows into the optimiser steps of an actor or a critic."""
        assert self.plan is not None
        rows.extra_info.update(
            global_batch_size=counted / self.plan.updates,
            num_mini_batch=self.plan.updates,
            epochs=section.ppo_epochs,
            seed=section.data_loader_seed,
            dataloader_kwargs={"shuffle": section.shuffle},
        )

    @property
    def log_prob_limit(self) -> float:
        """Limit of a step's mean difference between engine and trainer log-probs; rounding explains lower values.

        In measurements, the mean difference of a row was 0.02 to 0.05 in bfloat16 on a GPU, and the difference of a
        single token was 1e-6 in float32 on a CPU.
        """
        section = self.config.actor_rollout_ref
        exact = (
            PrecisionType.is_fp32(precision_of(section.actor.get("fsdp_config"))) and section.rollout.dtype == "float32"
        )
        # On a GPU verl sends merged adapters in bfloat16, whatever the dtypes of engine and trainer.
        merged = section.model.get("lora_rank") and section.model.lora.get("merge")
        return 1e-3 if exact and not merged else 0.1

    def empty_cache(self) -> None:
        engine = self.config.actor_rollout_ref.actor.get("fsdp_config") or {}
        if engine.get("param_offload") and engine.get("optimizer_offload"):
            # verl empties torch's cache of GPU memory before it moves the optimiser to the host, so the optimiser's
            # blocks stay reserved. The parameters are on the host already, so this call only empties the cache again.
            self.actor_rollout_wg.to("cpu", model=True, optimizer=False, grad=False)

    # -- weights --------------------------------------------------------------------------------------------

    def write_weights(self, folder: Path, step: int) -> None:
        """Write the current weights into a folder. `use_folder` must have prepared the policy's view."""
        group = self.actor_rollout_wg
        with writing(folder):
            ray.get(group.execute_checkpoint_engine(["use"] * group.world_size, [str(folder)] * group.world_size))
            ray.get(group.update_weights(global_steps=step, mode=BACKEND))
        # Move the parameters back to the host; verl does so only after a transfer to engines on the same devices.
        self.move("cpu")

    def save(self, folder: str, remote: str | None, step: int, keep: int | None) -> None:
        for group, part in self._stored:
            group.save_checkpoint(
                os.path.join(folder, part), remote and os.path.join(remote, part), step, max_ckpt_to_keep=keep
            )

    def load(self, folder: str, delete: bool) -> None:
        for group, part in self._stored:
            group.load_checkpoint(local_path=os.path.join(folder, part), del_local_after_load=delete)

    @property
    def _stored(self) -> list[tuple[Workers, str]]:
        """The worker groups with trained weights (policy, critic), each with its folder in a checkpoint."""
        policy = [(self.actor_rollout_wg, self.name)]
        return [*policy, (self.critic_wg, os.path.join(self.name, CRITIC))] if self.use_critic else policy


def precision_of(engine: DictConfig | None) -> str:
    """Return the dtype in which an FSDP engine computes."""
    return str(OmegaConf.select(engine or OmegaConf.create(), "mixed_precision.param_dtype", default="bf16"))


def _reported(output: TensorDict, part: str) -> dict[str, float]:
    """Reduce the metrics of an update, under verl's names."""
    metrics = rename_dict(output["metrics"], f"{part}/")
    metrics[f"perf/mfu/{part}"] = metrics.pop(f"{part}/mfu")
    reduced: dict[str, float] = reduce_metrics(metrics)
    return reduced


def check_finite(policy: str, metrics: dict[str, float], scaled: Collection[str]) -> None:
    """Raise UpdateFailed if a loss or a gradient is not finite. verl only skips such an optimiser step and continues.

    `scaled`: the parts (actor, critic) whose loss a gradient scaler multiplies. Such a loss is expected to
    overflow at times, so overflows are only counted.
    """
    wrong = [name for name in LOSSES if not math.isfinite(metrics.get(name, 0.0))]
    metrics |= {f"{part}/overflow": float(f"{part}/grad_norm" in wrong) for part in scaled}
    if values := ", ".join(f"{name}={metrics[name]}" for name in wrong if name.partition("/")[0] not in scaled):
        raise UpdateFailed(
            f"the update of policy {policy} is not finite: {values}\n"
            "  rule: the loss and the gradient of every optimiser step are finite; verl skipped this step\n"
            "  fix:  resume from the last checkpoint with a smaller optim.lr; if it repeats, compare the log-probs of "
            "engine and trainer (training/rollout_probs_diff_max) and check the model's weights"
        )
