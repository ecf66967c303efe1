"""Trainer of the team. It runs the steps, and coordinates one verl trainer (`PolicyTrainer`) per trained policy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, cast

from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor
from torch.random import fork_rng
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import get_rollout_replica_class

from verl_mas.config.adapters import host_policy
from verl_mas.config.modes import Mode
from verl_mas.config.placement import shared_pools
from verl_mas.config.run import Run
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.engines.serving import resolve_serving, serving
from verl_mas.errors import raise_all
from verl_mas.planning.path import training_path
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.team_client import Served
from verl_mas.run_folder.checkpoints import DATA_FILE, to_resume
from verl_mas.run_folder.lock import RunLock
from verl_mas.run_folder.metrics.findings import Findings
from verl_mas.trainer import metrics as step_metrics
from verl_mas.trainer import timeline
from verl_mas.trainer.batching import by_policy
from verl_mas.trainer.checkpoint import Checkpoints, Saved, check_resume, reading, run_identity
from verl_mas.trainer.filters import TaskFilter
from verl_mas.trainer.made_policies import make
from verl_mas.trainer.metrics import FIRST, Agreement, TokenCount
from verl_mas.trainer.policies.local_policy import PROFILED, LocalPolicy
from verl_mas.trainer.policies.policy_trainer import PolicyTrainer
from verl_mas.trainer.policies.servers import FrozenPolicy
from verl_mas.trainer.policies.snapshots import refresh, snapshot_metrics
from verl_mas.trainer.pools.nodes import check_nodes
from verl_mas.trainer.pools.pools import Pools, nodes_of, place
from verl_mas.trainer.recorded import Recorded
from verl_mas.trainer.starting import note_when_ready, sent_times, side_by_side, turns
from verl_mas.trainer.step import Credit, PolicyRows, in_order, read_columns, write_advantages
from verl_mas.trainer.timeline import Timeline
from verl_mas.trainer.validation import SessionValidation
from verl_mas.trainer.watcher import name_actors
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.data_plane import Rows
from verl_mas.verl_.types import Actor, Fields
from verl_mas.workflow import clock
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.team_file import describe

if TYPE_CHECKING:
    # At run time this import would be circular: its module imports verl's trainers, which import this module.
    from verl_mas.rollout.manager import MasAgentLoopManager

# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")
# Interval at which the end of the rollout is polled. verl's interval of 2 s was almost half of a 4.5 s step on a GPU.
POLL_SECONDS = 0.25


class TeamTrainer(Recorded, SessionValidation):
    """Coordinates a training step; `trainer.modes` adds one class per mode."""

    mode: ClassVar[Mode]
    timeline = Timeline()  # without a file, for an evaluation
    _initialized = 0.0  # when `init` ended, by `clock.now`
    # Time-sliced pool -> actor that swaps the engines of the pool's policies when no request runs.
    slices: Mapping[str, Actor] = MappingProxyType({})
    agent_loop_manager: MasAgentLoopManager

    def __init__(self, config: DictConfig):
        requested_run = Run.of(config)
        self.run = resolve_serving(requested_run)
        self.mas = self.run.mas
        self._served = {pool: serving(requested_run, pool) for pool in shared_pools(requested_run.mas)}
        # An evaluation writes no checkpoint.
        self.lock = None if config.trainer.val_only else RunLock(Path(config.trainer.default_local_dir))
        self.resumed = to_resume(config)
        self.identity = run_identity(self.run)
        if self.resumed:
            check_resume(self.resumed, self.run, self.identity)
        corrections = [self.run.view(name).correction for name in self.run.trained]
        corrected = any(each.get("rollout_is") or each.get("rollout_rs") for each in corrections)
        self.agreement = Agreement(self.resumed, corrected=corrected)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode.verl
            if self.mas.filter.refill:
                # All tasks of a small round may end without rows. With this setting, verl then samples further tasks.
                config.trainer.v1.sampler.sync_refill_failed_groups = True
        if self.lock is not None:
            pools = {name: spec.pool for name, spec in self.mas.policies.items()}
            self.timeline = Timeline(Path(config.trainer.default_local_dir), pools)
        super().__init__(config)
        self.use_critic = False  # The team's trainer has no critic, because each policy has its own critic.
        self.policies: dict[str, LocalPolicy | FrozenPolicy] = {}
        policies = agents_of(self.mas)
        self.credit = Credit(self.run, list(policies))
        self.filter = TaskFilter(self.mas.filter, lambda rows: self.credit.tasks_with_advantage(rows, self.trained))
        self._named: Counter[int] = Counter()  # step -> number of tasks that are named after it
        self._sessions = SessionCounts()  # counts of the current step
        self.token_count = TokenCount()
        self._findings = Findings([name for name, policy in policies.items() if policy.trainable])

    # -- set-up ---------------------------------------------------------------------------------------------

    def init(self) -> None:
        self.record()
        self.timeline.start(self.resumed.step + 1 if self.resumed else 1, sent_times())
        with self.timeline.span(timeline.DATA):
            self._init_tokenizer()
            self._init_dataloader()
            self._init_dump_executor()
            self.pools = Pools(self.run)
            place(self.pools.all)
            raise_all(check_nodes(self.run, nodes_of(self.pools.all)))
        self._start_side_by_side()
        for pool, served in self._served.items():
            logger.info("pool %s: serving=%s (%s)", pool, served.way, served.reason)
        for name in self.trained if self.config.trainer.device != CPU else ():
            logger.info("policy %s: %s", name, training_path(self.run.view(name).config))
        self._engines_started()
        name_actors(self._actors())
        queue = data_plane if self.mode.asynchronous else None
        facts = {**self.identity, FIRST: self.agreement.first}
        # verl loads checkpoints through this attribute.
        self.actor_rollout_wg = Checkpoints(
            self.saved, self.config.trainer, facts, self.credit.running, describe(self.run), queue
        )
        with self.timeline.span(timeline.CHECKPOINT) if self.resumed else nullcontext():
            self._load_checkpoint()
        if self.global_steps >= self.total_training_steps and not self.config.trainer.val_only:
            logger.warning("nothing is left to train: the checkpoint is of step %s, the last", self.global_steps)
        self.on_init_end()
        self._initialized = clock.now()

    def fit(self, agent_loop_manager: MasAgentLoopManager) -> None:  # type: ignore[override]
        """Train. The time since `init`, in which the agent-loop workers got their clients, is added to the timeline."""
        self.timeline.add(timeline.AGENT_LOOP_WORKERS, self._initialized, clock.now())
        super().fit(agent_loop_manager)

    def _start_side_by_side(self) -> None:
        """Start agent-loop workers, reward workers and policies in parallel. This thread first creates all policies."""
        from verl_mas.rollout.manager import early_workers  # circular at the top of this module

        self._workers = early_workers(self.config)
        note_when_ready(self._workers, timeline.AGENT_LOOP_WORKERS, self.timeline)
        starts = turns(self.run, self.timeline)
        self.policies = {name: make(name, self.run, self.pools, self.total_training_steps) for name in starts}
        for policy in self.policies.values():
            # Import the engine's modules before threads start, because a second thread may see them half imported.
            get_rollout_replica_class(policy.engine)
        policies = {f"policy {name}": partial(starts[name].take, one.start) for name, one in self.policies.items()}
        side_by_side({"the reward workers": self._start_reward_workers, **policies})

    def _actors(self) -> dict[str, list[Actor]]:
        workers = {f"training worker {{}} of policy {name}": policy.workers for name, policy in self.training.items()}
        servers = {f"engine {{}} of policy {name}": host.servers for name, host in self.policies.items()}
        return {**workers, **servers, "time slices {}": list(self.slices.values())}

    def _engines_started(self) -> None:
        """Hook of the modes, called when the engines of all policies have started and sleep."""

    def _start_reward_workers(self) -> None:
        pool = self.pools.reward  # None: verl's default
        workers = RewardLoopManager(config=self.config, rm_resource_pool=pool)  # type: ignore[arg-type]
        if workers.reward_model_manager and self.config.reward.reward_model.rollout.free_cache_engine:
            # verl wakes the reward model only to score a whole batch. A team's sessions are scored as they end, so the
            # model stays awake; it has its own GPUs.
            workers.reward_model_manager.wake_up()
        note_when_ready(cast("list[Actor]", workers.reward_loop_workers), timeline.REWARD_WORKERS, self.timeline)
        self.reward_loop_manager = workers

    @property
    def saved(self) -> dict[str, Saved]:
        """The policies that a checkpoint contains, including adapters and their bases."""
        return {name: policy for host in self.policies.values() for name, policy in host.saved.items()}

    @property
    def trained(self) -> dict[str, PolicyTrainer]:
        """The policies that are updated, including adapters."""
        return {name: policy for name, policy in self.saved.items() if isinstance(policy, PolicyTrainer)}

    @property
    def training(self) -> dict[str, LocalPolicy]:
        """The policies that have training processes, including bases of adapters."""
        return {name: policy for name, policy in self.policies.items() if isinstance(policy, LocalPolicy)}

    def get_llm_client(self) -> Served:  # type: ignore[override]
        served = {}
        for name in (name for name, spec in self.mas.policies.items() if not spec.remote):
            home = host_policy(self.mas, name)
            slices = self.slices.get(self.mas.policies[home].pool)
            adapter = None if name == home else name
            served[name] = self.policies[home].client(adapter, slices, resumes=self.mode.asynchronous)
        return Served(served, self._workers)

    def get_teacher_client(self) -> None:
        return None

    def _get_n_gpus_for_throughput(self) -> int:
        return self.pools.n_gpus

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.config.trainer.v1.sampler.sampler_kwargs.get("poll_interval", POLL_SECONDS)
        return buffer

    # -- engines --------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        self._wake()

    def on_sample_end(self) -> None:
        self._sleep()
        if self.curr_step_profile:
            self._stop_rollout_profiling()

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw, color="red"):
            self._wake()

    def _wake(self) -> None:
        """Wake all engines. Every trained policy gets the new version number, even if it had no rows in this step, so
        that the versions of all policies can be compared."""
        refresh(self.policies, self.global_steps)
        self.pools.each(self.policies, self._wake_one)

    def _wake_one(self, name: str) -> None:
        with self.timeline.span(timeline.WAKE, name):
            self.policies[name].wake(self.global_steps)

    def _sleep(self) -> None:
        self.pools.each(self.policies, self.sleep_one)

    def sleep_one(self, name: str) -> None:
        with self.timeline.span(timeline.SLEEP, name):
            self.policies[name].sleep()

    # -- verl's profiler --------------------------------------------------------------------------------------

    def _rollout_server_managers(self) -> list[LLMServerManager]:
        return [policy.llm_server_manager for policy in self.training.values()]

    def _start_profiling(self) -> None:
        for policy in self.training.values():
            policy.profile(True, {name: getattr(self, name) for name in PROFILED})

    def _stop_profiling(self) -> None:
        for policy in self.training.values():
            policy.profile(False, {name: getattr(self, name) for name in PROFILED})
        for name in PROFILED:
            setattr(self, name, getattr(policy, name))

    # -- checkpoints ----------------------------------------------------------------------------------------

    def _load_checkpoint(self) -> None:
        self.global_steps = 0
        if self.resumed:
            self.config.trainer.resume_from_path = str(self.resumed.folder)
            with reading(self.resumed.folder, DATA_FILE):
                super()._load_checkpoint()

    def _save_checkpoint(self) -> None:
        """Save a checkpoint. verl's method would overwrite its pointer file in place (patch: checkpoint-tracker)."""
        with self.timeline.span(timeline.SAVE):
            folder = self.actor_rollout_wg.save(self.global_steps, self.train_dataloader.state_dict())
        self.checkpoint_callback.on_save(
            trainer=self, global_step=self.global_steps, checkpoint_dir=str(folder), async_save=False
        )

    # -- data -----------------------------------------------------------------------------------------------

    def prepare_step(self) -> Fields:
        self._sessions = SessionCounts()
        self.timeline.begin(self.global_steps)
        return super().prepare_step()

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Name each task by step and index, so that a run is repeatable. verl uses random uids."""
        if self.resumed and self.train_dataloader_it is None:
            # A new iterator samples a seed. The run did so before its checkpoint, so restore the random state here.
            with fork_rng(devices=[]):
                self.train_dataloader_it = iter(self.train_dataloader)
        batch = super()._fetch_one_gen_batch()
        # Warm-up tasks may have steps below 0.
        step = max(self.global_steps, 0)
        names = [f"{step}-{self._named[step] + i}" for i in range(len(batch))]
        self._named[step] += len(batch)
        tu.assign_non_tensor_stack(batch, row.UID, names)
        tu.assign_non_tensor_stack(batch, row.PROGRESS, [max(step - 1, 0) / self.total_training_steps] * len(batch))
        self._tasks_are_named(names)
        return batch

    def _tasks_are_named(self, names: list[str]) -> None:
        """Hook of the modes, called before the sessions of these tasks start."""

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        """Check for failed sessions before verl replaces tasks without rows, which it would do indefinitely."""
        self._count_sessions(least=self.config.data.train_batch_size)
        added: int = super()._add_prompts_to_generate(num_prompts)
        return added

    def _count_sessions(self, least: int = 0) -> None:
        """Update the step's counts. Raises EngineLost if an engine is lost. Raises SessionsFailed if at least `least`
        tasks have ended in the step and too many of their sessions failed."""
        self._sessions += self.agent_loop_manager.pop_counts()
        if self._sessions.tasks >= least:
            self._sessions.check(self.mas.faults.max_dropped_share, f"step {self.global_steps}")

    # -- the step -------------------------------------------------------------------------------------------

    def _step_once(self, metrics: dict[str, float], timing_raw: dict[str, float], sample_batch_size: int) -> Rows:
        with marked_timer("gen", timing_raw, color="red"):
            try:
                with self.timeline.span(timeline.SAMPLE):
                    batch, sampling = self.filter.sample(sample_batch_size, self._sample, self._add_prompts_to_generate)
            finally:
                # Report a lost engine or failed sessions, even if `sample` has raised because there are no rows.
                self._count_sessions()
            metrics.update(self._sessions.metrics() | sampling)
            self.on_sample_end()
        idle = self.timeline.sampled(self._sessions.busy)
        batch = in_order(batch)
        trained_on = self.filter.trained_indices(batch)
        parts = self._split_by_policy(batch, trained_on)
        with marked_timer("old_log_prob", timing_raw, color="blue"):
            self._run_by_host(parts, lambda name: self._compute_log_probs(name, parts[name]))
        with marked_timer("adv", timing_raw, color="brown"):
            columns = read_columns(batch, parts.values())
            per_row, diagnostics = self.credit.of_step(columns, trained_on, parts.values())
            write_advantages(batch, columns, per_row, parts)
            for dispatched in {batch.tags[i][row.GLOBAL_STEPS] for i in trained_on}:
                rows = [i for i in trained_on if batch.tags[i][row.GLOBAL_STEPS] == dispatched]
                self.agent_loop_manager.record_advantages(dispatched, {batch.keys[i]: float(per_row[i]) for i in rows})
        with marked_timer("update_actor", timing_raw, color="red"):
            self._run_by_host(parts, lambda name: self._update(name, parts[name]))
        metrics.update(step_metrics.agent_metrics(columns, per_row if trained_on else None, diagnostics))
        metrics.update(step_metrics.policy_metrics(parts, list(self.trained)))
        limits = {name: policy.log_prob_limit for name, policy in self.trained.items()}
        metrics.update(compared := step_metrics.log_prob_metrics(parts, limits, self.global_steps))
        self.agreement.add(compared, self.global_steps)
        metrics.update(snapshot_metrics(self.policies, self.global_steps))
        if self.mode.asynchronous:
            metrics.update(idle)
            buffered_tags = self.replay_buffer.partitions[data_plane.TRAIN]
            metrics.update(self.token_count.add(self._sessions.trainable_tokens, parts, buffered_tags, batch))
            metrics.update(step_metrics.staleness_metrics(parts, self.global_steps))
        return self._join_rows(batch, parts)

    def _sample(self, tasks: int) -> tuple[Rows, dict[str, float]]:
        """Wait until this many tasks have ended, and return their rows and verl's metrics."""
        sampled: tuple[Rows, dict[str, float]] = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id=data_plane.TRAIN, batch_size=tasks
        )
        return sampled

    def _split_by_policy(self, batch: Rows, trained_on: Sequence[int]) -> dict[str, PolicyRows]:
        rows = by_policy(batch.tags, list(self.mas.policies))
        parts, taught = {}, set(trained_on)
        for name in self.trained:
            kept = [i for i in rows[name] if i in taught and batch.tags[i][row.TRAINABLE]]
            if kept:
                parts[name] = PolicyRows(data_plane.select(batch, kept))
            else:
                logger.info("step %d: policy %s has no rows; no update", self.global_steps, name)
        return parts

    def _run_by_host(self, names: Iterable[str], work: Callable[[str], None]) -> None:
        """Call `work` for trained policies. Adapters of a base take turns while the base is on the device."""
        at: dict[str, list[str]] = {}
        for name in names:
            at.setdefault(host_policy(self.mas, name), []).append(name)

        def work_at(home: str) -> None:
            with self.policies[home].on_device():
                for name in at[home]:
                    work(name)

        self.pools.each(at, work_at)

    def _compute_log_probs(self, name: str, part: PolicyRows) -> None:
        policy = self.trained[name]
        policy.global_steps = self.global_steps
        with self.timeline.span(timeline.LOG_PROBS, name), marked_timer("timing/old_log_prob", part.metrics):
            part.batch = policy.prepare(part.batch, part.metrics)
            part.data, part.changed = policy.read(part.batch, part.metrics)
            policy.weigh(part)
            policy.credit(part)

    def _update(self, name: str, part: PolicyRows) -> None:
        policy = self.trained[name]
        with self.timeline.span(timeline.UPDATE, name), marked_timer("timing/update", part.metrics):
            policy.update(policy.rows_to_train(part), part.metrics, counted=part.weights.total)

    def _join_rows(self, batch: Rows, parts: Mapping[str, PolicyRows]) -> Rows:
        """Join all rows of the step, including padding, for verl's metrics and for the clean-up after the step."""
        placed = {key for part in parts.values() for key in part.batch.keys}
        rest = data_plane.select(batch, [i for i, key in enumerate(batch.keys) if key not in placed])
        whole = data_plane.join([*(part.batch for part in parts.values()), rest])
        for tag in whole.tags:
            for version in (row.MIN_GLOBAL_STEPS, row.MAX_GLOBAL_STEPS):
                # Engines of frozen policies do not count versions, so fill in the version of the current weights.
                tag[version] = self.global_steps - 1 if tag.get(version) is None else tag[version]
        return whole

    # -- logging --------------------------------------------------------------------------------------------

    def _compute_metrics(
        self, batch: Rows, metrics: dict[str, float], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        logger.info("%s", step_metrics.step_line(global_steps, metrics, timing_raw, list(self.trained)))
        for finding in self._findings.add(metrics):
            logger.warning("step %d | %s", global_steps, finding.text)

    def read_text(self, policy: str, ids: Tensor) -> str:
        return str(self.policies[host_policy(self.mas, policy)].tokenizer.decode(ids, skip_special_tokens=True))

    def _log_rollout_data(self, batch: Rows, timing_raw: dict[str, float], rollout_data_dir: str) -> None:
        """Write verl's dump of the rollouts, with the agent and policy of every row."""
        with marked_timer("dump_rollout_generations", timing_raw, color="green"):
            real = [i for i, tag in enumerate(batch.tags) if not row.is_padding(tag)]
            rows = in_order(data_plane.select(batch, real))
            data = data_plane.read(rows, [row.PROMPTS, row.RESPONSES, row.SCORES])
            prompts, replies = (
                [self.read_text(tag[row.POLICY], ids) for tag, ids in zip(rows.tags, data[name].unbind(), strict=True)]
                for name in (row.PROMPTS, row.RESPONSES)
            )
            of_tags = {name: [tag[name] for tag in rows.tags] for name in (row.AGENT, row.POLICY, row.TURN)}
            self._dump_generations(
                inputs=prompts,
                outputs=replies,
                gts=[None] * len(rows),
                scores=[float(score.sum()) for score in data[row.SCORES].unbind()],
                reward_extra_infos_dict={row.UID: rows.keys, **of_tags},
                dump_path=rollout_data_dir,
            )
