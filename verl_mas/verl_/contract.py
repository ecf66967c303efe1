"""What verl-mas relies on in verl beyond its public functions and classes: overrides, private names, texts, keys.

Plain data about verl 0.9.1; nothing is imported here. `verl_mas.checks.contract` compares it with the verl that is
installed; a test proves that no override and no private name is missing. Parameters are written by name; `=` marks an
optional one. The members of a class include inherited ones.
"""

from __future__ import annotations

import json
from pathlib import Path

# With which the tables below agree.
VERSION = "0.9.1"

_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_TOOLS = "verl.experimental.agent_loop.tool_agent_loop"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_WORKER = "verl.trainer.ppo.v1.agent_loop_tq"
_ROLLOUT = "verl.workers.rollout"
_SGLANG = "verl.workers.rollout.sglang_rollout"
_VLLM = "verl.workers.rollout.vllm_rollout"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_COLOCATED = "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync"

# Class of verl -> method that a class of ours overrides -> its parameters. Made by `scripts/lock_overrides.py`.
OVERRIDDEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "overridden.json").read_text())

# Class or module of verl -> name that we call, read or write -> its parameters; None: not a function.
USED: dict[str, dict[str, str | None]] = {
    f"{_TRAINER}:PPOTrainer": {
        "_compute_old_log_prob": "self, batch, metrics",
        "_compute_ref_log_prob": "self, batch, metrics",
        "_dump_generations": "self, inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path",
        "_init_dump_executor": "self",
        "_init_tokenizer": "self",
        "_maybe_log_val_generations": "self, inputs, outputs, scores",
        "_next_train_batch": "self, num_prompts=",
        "_stop_rollout_profiling": "self",
        "_submit_batch_to_rollout": "self, batch",
        "_val_metrics_update": "self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, "
        "expected_acc_counts=",
    },
    # The trainer's name for the class of its loggers, which is replaced while they are made.
    _TRAINER: {"Tracking": None},
    f"{_WORKER}:AgentLoopWorkerTQ": {
        "_compute_score": "self, outputs, kwargs",
        "_compute_teacher_logprobs": "self, output, prompt_ids, response_ids, validate, sample_kwargs=",
    },
    # Called unbound on an object of ours that has the attributes which they read.
    f"{_AGENT_LOOP}:AgentLoopWorker": {
        "_compute_multi_modal_inputs": "self, output, input_ids",
        "_compute_position_ids": "self, input_ids, attention_mask, multi_modal_inputs, mm_processor_kwargs=",
        "_get_mm_processor_kwargs": "self, audio_data=",
    },
    f"{_TOOLS}:ToolAgentLoop": {
        "_assert_mm_supported": "self, has_multi_modal",
        "_get_mm_processor_kwargs": "self, audio_data=",
    },
    "verl.experimental.agent_loop.tool_parser:ToolParser": {"_registry": None},
    "verl.single_controller.ray.base:ResourcePoolManager": {"resource_pool_dict": None},
    # The two registries of engines in verl: `name -> loader`, and `(name, mode) -> class path`.
    f"{_ROLLOUT}.replica:RolloutReplicaRegistry": {"_registry": None},
    f"{_ROLLOUT}.base": {"_ROLLOUT_REGISTRY": None},
    f"{_ROLLOUT}.replica:RolloutReplica": {"_server_address": None, "_server_handle": None},
    f"{_SGLANG}.async_sglang_server:SGLangHttpServer": {"lora_as_adapter": "self"},
    f"{_SGLANG}.sglang_rollout:ServerAdapter": {
        "_engine": None,
        "_init_server_adapter": "self",
        "_is_server_tp_leader": "self",
        "server_actor": None,
        "wrap_lora_params": "self, peft_config, weights",
    },
    f"{_VLLM}.vllm_async_server:vLLMHttpServer": {"_get_wake_up_tags": "self"},
    f"{_VLLM}.vllm_rollout:ServerAdapter": {
        "_execute_method": "self, method, non_block=, timeout=, args=, kwargs=",
        "_get_server_name_prefix": "self",
        "_has_server": None,
    },
    f"{_VLLM}.utils:vLLMColocateWorkerExtension": {"_get_zmq_handle": "self"},
    f"{_FSDP}:FSDPEngineWithLMHead": {"_autocast_dtype": None, "_is_lora": None},
    # Keys of verl's dataclasses that its YAML does not list.
    "verl.workers.config.rollout:RolloutConfig": {"custom": None},
    "verl.workers.config.rollout:AgentLoopConfig": {"agent_loop_manager_class": None},
}

# Mixin class of ours -> the class of verl that it is combined with when an engine is requested.
MIXED_INTO: dict[str, str] = {
    "verl_mas.engines.stock:OffsetReplica": f"{_ROLLOUT}.replica:RolloutReplica",
    "verl_mas.engines.stock:OffsetAdapter": f"{_ROLLOUT}.base:BaseRollout",
    "verl_mas.engines.kinds.vllm:TeamVllm": f"{_VLLM}.vllm_async_server:vLLMHttpServer",
    "verl_mas.engines.kinds.sglang:AdapterSender": f"{_SGLANG}.sglang_rollout:ServerAdapter",
    "verl_mas.engines.kinds.sglang:TeamSglang": f"{_SGLANG}.async_sglang_server:SGLangHttpServer",
}

# Module of verl -> text that we write or read as verl does -> how often the module has it. A different number means
# that verl uses it in another place.
TEXTS: dict[str, dict[str, int]] = {
    # A trainer of ours presents itself as one of verl's modes (`config.modes`), and keeps verl's partitions.
    _TRAINER: {
        "sync": 6,
        "train": 7,
        "val": 2,
        "is_padding": 2,
        "__rollout_n__": 1,
        "no_lora_adapter": 1,
        "_enable_hybrid_replicas": 2,
    },
    "verl.workers.engine_workers": {"no_lora_adapter": 1, "disable_auto_offload": 3},
    _WORKER: {"__rollout_n__": 1, "__do_sample__": 1, "agent_name": 2},
    "verl.workers.engine.base": {"VERL_ENGINE_VENDOR": 2},
    _BUFFER: {"is_prompt": 1, "running": 1, "finished": 1, "failure": 1, "_": 7},
}

# Function of verl that our code repeats or depends on -> the digest of its source, and our file. A change does not have
# to break anything, but must be read.
RESTATED: dict[str, tuple[str, str]] = {
    f"{_TRAINER}:PPOTrainer._setup": ("8c11041b6803", "trainer/trainer.py"),
    f"{_TRAINER}:PPOTrainer._step_once": ("9e78440c2cf9", "trainer/trainer.py"),
    f"{_TRAINER}:PPOTrainer._update_actor": ("82879aeff227", "trainer/policies/policy_trainer.py"),
    "verl.trainer.ppo.core_algos:agg_loss": ("baa1eabb337d", "trainer/loss_weights.py"),
    f"{_FSDP}:FSDPEngine._build_lora_module": ("52d173ed9ca9", "trainer/adapters/engine.py"),
    # What it asks the engine for decides what is sent to the rollout engines.
    "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights": ("7127eb550225", "trainer/adapters/engine.py"),
    "verl.workers.utils.losses:ppo_loss": ("d7a7f4ab82c8", "trainer/loss_weights.py"),
    f"{_TRAINER}:PPOTrainer._validate": ("163961d26416", "trainer/validation.py"),
    f"{_TRAINER}:PPOTrainer._save_checkpoint": ("fe53d9935ee2", "trainer/checkpoint.py"),
    f"{_TRAINER}:PPOTrainer._load_checkpoint": ("686e8d6e0f61", "trainer/checkpoint.py"),
    f"{_TRAINER}:PPOTrainer._reissue_inflight_prompts": ("26ae60e7b2f2", "trainer/modes/asynchronous.py"),
    f"{_TRAINER}:PPOTrainer._add_async_warmup_batches": ("3c6d4a0b05ab", "trainer/modes/asynchronous.py"),
    f"{_COLOCATED}.on_sample_end": ("a69a9a73601c", "trainer/modes/asynchronous.py"),
    f"{_COLOCATED}.on_step_end": ("80faf3bea7b3", "trainer/modes/asynchronous.py"),
    # Where it writes.
    "verl.utils.tracking:FileLogger.__init__": ("40f4d5744cad", "run_folder/metrics.py"),
    f"{_WORKER}:AgentLoopWorkerTQ.generate_sequences": ("93858c047d69", "rollout/verl_client.py"),
    f"{_WORKER}:AgentLoopWorkerTQ._run_prompt": ("ba6ad1731dfb", "rollout/worker.py"),
    f"{_WORKER}:AgentLoopWorkerTQ._agent_loop_postprocess": ("22fb25639254", "rollout/stored.py"),
    f"{_TOOLS}:ToolAgentLoop._handle_generating_state": ("b3715bef59e0", "rollout/verl_client.py"),
    f"{_TOOLS}:ToolAgentLoop._handle_processing_tools_state": ("acf632e06ff6", "workflow/tool_loop.py"),
    f"{_TOOLS}:ToolAgentLoop._build_assistant_message": ("a7ffceb63c35", "workflow/client.py"),
    f"{_TOOLS}:ToolAgentLoop._call_tool": ("4d3d0fc5afe8", "workflow/tool_loop.py"),
    "verl.single_controller.ray.base:RayResourcePool.get_placement_groups": ("d1f18ea24e8c", "trainer/pools/pools.py"),
    f"{_ROLLOUT}.llm_server:LLMServerManager._initialize_llm_servers": ("4705b15549e8", "trainer/policies/servers.py"),
    f"{_ROLLOUT}.replica:RolloutReplica.init_standalone": ("e67d89557443", "trainer/policies/separate.py"),
    "verl.checkpoint_engine.base:CheckpointEngineManager.update_weights": (
        "13632fedbb9c",
        "trainer/policies/separate.py",
    ),
    f"{_ROLLOUT}.replica:RolloutReplica.init_hybrid": ("83efab52cdf5", "engines/stock.py"),
    f"{_VLLM}.vllm_rollout:ServerAdapter.update_weights": ("136aa4832e3c", "engines/vllm_cpu/adapter.py"),
    f"{_VLLM}.utils:vLLMColocateWorkerExtension.update_weights_from_ipc": (
        "21234c3142d0",
        "engines/vllm_cpu/worker.py",
    ),
}

# Keys of verl's configuration that our code writes; the Hydra group files hold their own.
KEYS: tuple[str, ...] = (
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
    "actor_rollout_ref.rollout.checkpoint_engine.backend",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module",
    "actor_rollout_ref.rollout.engine_kwargs.sglang",
    "actor_rollout_ref.rollout.load_format",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.nnodes",
    "reward.num_workers",
    "reward.reward_model.enable",
    "reward.reward_model.enable_resource_pool",
    "trainer.checkpoint_callback_class",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.v1.sampler.sampler_kwargs",
    "trainer.v1.sampler.sync_refill_failed_groups",
    "trainer.v1.trainer_mode",
)
