"""Every setting, of the team and of verl: a misspelt key, a wrong type, a value out of range and a name that is no
choice are refused, and the message names the setting."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_origin, is_typeddict

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.policies import check_override_keys, check_override_values
from verl_mas.checks.verl.refusals import Problem
from verl_mas.checks.verl.settings import check_keys, check_values
from verl_mas.checks.verl.values import takes
from verl_mas.config.run import Run, load
from verl_mas.config.schema import MasConfig
from verl_mas.config.values import Hint, core_type, problems, settable
from verl_mas.config.verl_settings import SettingsSection, verl_settings
from verl_mas.errors import ConfigError, ConfigErrors

COUNT, NUMBER, POSITIVE, NOT_NEGATIVE = "a whole number", "a finite number", "at least 1", "at least 0"
OVERRIDES = "mas.policies.main.overrides"
# What the message says -> settings with the values that it is said of.
REFUSED = {
    COUNT: """
        data.train_batch_size=eight|null|8.5|[8]|true AR.rollout.n=many|null|1.5 trainer.max_actor_ckpt_to_keep=some
        OV.actor.ppo_mini_batch_size=half OV.rollout.tensor_model_parallel_size=1.5 mas.branch.k=many|1.5""",
    "a whole number, or null": "data.seed=lucky|{a:1}",
    "a whole number, at least 1, or null": """
        trainer.total_training_steps=few|{a:1}|{a:{b:1}} data.gen_batch_size={a:1} data.val_batch_size={a:1}
        trainer.max_actor_ckpt_to_keep={a:1} trainer.max_critic_ckpt_to_keep={a:1}
        AR.ref.log_prob_micro_batch_size_per_gpu={a:1} OV.ref.log_prob_micro_batch_size={a:1}""",
    "text, or null": "trainer.default_hdfs_dir={a:1} reward.custom_reward_function.path={a:1}",
    "text, not empty, or null": "trainer.resume_from_path={a:1}",
    "at least 0, or null": "ray_kwargs.ray_init.num_cpus={a:1}",
    NUMBER: """
        AR.rollout.temperature=warm|.inf AR.rollout.gpu_memory_utilization=half
        AR.actor.optim.lr=fast|null|nan|.nan|inf AR.actor.clip_ratio=tight AR.actor.grad_clip=nan
        AR.actor.kl_loss_coef=nan AR.actor.entropy_coeff=nan AR.actor.clip_ratio_high=inf
        ray_kwargs.ray_init.num_gpus=many|.nan ray_kwargs.ray_init.num_cpus=many OV.actor.optim.lr=fast|nan
        mas.reward.team=much|nan|inf mas.reward.local=-inf mas.faults.backoff_s=inf
        mas.agents.solver.format_penalty=inf""",
    "true or false": "data.shuffle=sometimes mas.skip_zero_advantage=often mas.trajectories.enabled=5",
    "is text": "AR.model.path=5|null trainer.experiment_name=5 OV.model.path=5",
    "text, or a list": "AR.model.target_modules=5",
    "a list": """
        AR.actor.optim.betas=[0.9] AR.actor.checkpoint.save_contents=model mas.plugins=plugin.py
        mas.agents.solver.tools=calculator""",
    "a mapping": "mas.policies.main.overrides=5 mas.agents=5 mas.workflow=5",
    "this is a section, not a value": "AR.rollout.agent=5 AR.actor.optim=5",
    POSITIVE: """
        data.train_batch_size=0|-8 data.max_prompt_length=0 data.max_response_length=0|-5 trainer.nnodes=0
        trainer.n_gpus_per_node=0|-1 trainer.total_training_steps=0|-5 trainer.total_epochs=0
        trainer.max_actor_ckpt_to_keep=0 reward.num_workers=0
        transfer_queue.backend.SimpleStorage.num_data_storage_units=0 AR.rollout.n=0 AR.rollout.val_kwargs.n=0
        AR.rollout.tensor_model_parallel_size=0|-1 AR.rollout.data_parallel_size=0 AR.rollout.agent.num_workers=0
        AR.rollout.max_num_seqs=0 AR.actor.ppo_mini_batch_size=0|-8 AR.actor.ppo_epochs=0
        AR.actor.ppo_max_token_len_per_gpu=0 AR.model.lora_alpha=-3 OV.actor.ppo_mini_batch_size=0
        OV.rollout.tensor_model_parallel_size=0 mas.faults.max_acts=0 mas.branch.k=0 mas.updates_per_step=0""",
    "-1, or a whole number, at least 1": "data.train_max_samples=0",
    NOT_NEGATIVE: """
        data.dataloader_num_workers=-1 trainer.log_val_generations=-1 ray_kwargs.ray_init.num_cpus=-1
        AR.actor.optim.weight_decay=-0.1
        AR.actor.kl_loss_coef=-0.1 AR.actor.clip_ratio=-1 AR.model.lora_rank=-1
        mas.agents.solver.format_penalty=-1""",
    "at least -1": "trainer.save_freq=-2 trainer.test_freq=-2 AR.rollout.top_k=-2",
    "at most 1": "AR.rollout.top_p=7 AR.rollout.gpu_memory_utilization=1.5",
    "above 0": """
        AR.rollout.gpu_memory_utilization=0 AR.actor.grad_clip=0 OV.rollout.gpu_memory_utilization=-0.5
        algorithm.rollout_correction.rollout_is_threshold=-1 mas.branch.temperature=0""",
    "above 1": "AR.actor.clip_ratio_c=1",
    "between 0 and 10": "AR.actor.optim.lr=-1e-6|1e300",
    "between 0 and 1": """
        AR.actor.optim.lr_warmup_steps_ratio=1.5 algorithm.gamma=2 mas.trajectories.sampling_rate=2""",
    "between 0.01 and 100": "AR.rollout.repetition_penalty=1e-40",
    "between 0 and 100": "mas.faults.retries=-1 AR.rollout.temperature=-1|1e9 AR.rollout.val_kwargs.temperature=-1",
    "one of left, right, middle, error": "data.truncation=5|top",
    "console": "trainer.logger=5|[console,bogus]|consol",
    "vanilla": "AR.actor.policy_loss.loss_mode=bogus OV.actor.policy_loss.loss_mode=bogus",
    "low_var_kl": "AR.actor.kl_loss_type=bogus",
    "token-mean": "AR.actor.loss_agg_mode=token",
    "optimizer": "AR.actor.checkpoint.save_contents=[model,optimiser]",
    "bfloat16": "AR.actor.fsdp_config.model_dtype=float8 AR.rollout.dtype=float8 OV.rollout.dtype=float8",
    "is async": "AR.rollout.mode=sync",
    "safetensors": "AR.rollout.load_format=bogus",
    "fcfs": "AR.rollout.scheduling_policy=random",
    "cuda": "trainer.device=quantum",
    "resume_path": "trainer.resume_mode=bogus",
    "drop": "trainer.v1.sampler.max_off_policy_strategy=bogus",
    "SimpleStorage": "transfer_queue.backend.storage_backend=Bogus",
    "sequence": "algorithm.rollout_correction.rollout_is=word",
    "ppo_clip": "algorithm.rollout_correction.loss_type=bogus",
    "register": "reward.reward_manager.source=bogus",
    "drop_session": "mas.faults.then=stop",
    "phases": "mas.pools.shared.serving=turns",
    "drop_oldest": "mas.agents.solver.truncation=end",
    "session": "mas.reward.penalty_on=group",
    "did you mean 'clip_cov'?": "AR.actor.policy_loss.loss_mode=clip-cov",
    "did you mean 'linear'?": "AR.actor.optim.lr_scheduler_type=linnear",
    "did you mean 'fixed'?": "algorithm.kl_ctrl.type=fix",
    "did you mean 'dr_mas'?": "mas.reward.preset=drmas",
    # Keys.
    "did you mean data?": "dta.train_batch_size=8",
    "did you mean data.train_batch_size": "train_batch_size=8",
    "did you mean AR.actor.ppo_mini_batch_size": "data.ppo_mini_batch_size=8",
    "AR.actor.optim.learning_rate is not a setting": "AR.actor.optim.learning_rate=1e-6",
    "transformers": "AR.rollout.engine_kwargs.transfomers.threads=2",
    "OV.actor.optim.lr": "OV.actor.optim.lrr=1e-6",
    "OV.actor": "OV.aktor.optim.lr=1e-6",
    "rollout.val_kwargs.temperature": "OV.rollout.val_kwargs.tempreature=1",
}
# Of these, every setting that has a type refuses some.
WRONG = ["no such value", 5, -1, 1.5, -(10**9), 10**9, True, [[]], math.nan, ""]
SETS = OverridesParser.create().parse_override


def full(text: str) -> str:
    return text.replace("AR.", "actor_rollout_ref.").replace("OV.", f"{OVERRIDES}.")


@dataclass(frozen=True)
class Assignment:
    path: str
    value: Any
    says: str

    def fits(self, other: Assignment) -> bool:
        """Whether both can be wrong in one configuration, and are reported in one call."""
        ours, theirs = f"{self.path}.", f"{other.path}."
        return not (ours.startswith(theirs) or theirs.startswith(ours)) and self.of_team == other.of_team

    @property
    def of_team(self) -> bool:
        return self.path.startswith("mas.") and not self.path.startswith(f"{OVERRIDES}.")


def assignments() -> Iterator[Assignment]:
    for says, settings in REFUSED.items():
        for setting in full(settings).split():
            path, _, values = setting.partition("=")
            yield from (Assignment(path, SETS(f"{path}={value}").value(), full(says)) for value in values.split("|"))


def rounds(every: Iterable[Assignment]) -> list[list[Assignment]]:
    """As few configurations as have each assignment once."""
    together: list[list[Assignment]] = []
    for one in every:
        group = next((group for group in together if all(map(one.fits, group))), None)
        if group is None:
            together.append(group := [])
        group.append(one)
    return together


def reported(config: DictConfig) -> dict[str, str]:
    """Setting -> what the checks of single settings say of it."""
    errors: list[Problem] = [*check_keys(config), *check_values(config)]
    try:
        run = Run.of(config)
        errors += [*check_override_keys(run), *check_override_values(run)]
    except ConfigError as error:
        errors += error.errors if isinstance(error, ConfigErrors) else [error]
    said: dict[str, str] = defaultdict(str)
    for error in errors:
        said[re.split(r"[=\[ ]", error.value)[0]] += str(error)
    return said


def said_of(path: str, said: dict[str, str]) -> str:
    """What is said of a setting or of a section that it is in."""
    return "".join(text for name, text in said.items() if f"{path}.".startswith(f"{name}."))


def test_a_wrong_value_or_key_is_refused_in_the_words_of_its_rule(make):
    missed = []
    for group in rounds(assignments()):
        config = make()
        for one in group:
            OmegaConf.update(config, one.path, one.value, force_add=True)
        said = reported(config)
        missed += [(one, said_of(one.path, said)) for one in group if one.says not in said_of(one.path, said)]
    assert missed == []


def verls() -> Iterator[tuple[str, Hint]]:
    """Every setting of verl with a type, outside of the sections that are passed on to others."""

    def below(section: SettingsSection) -> Iterator[tuple[str, Hint]]:
        for key in section.keys:
            path = f"{section.path}.{key}".lstrip(".")
            inner = section.below(key)
            if inner:
                yield from below(inner)
            elif key != "_target_":
                yield path, takes(path) or section.hint(key)

    return below(verl_settings())


def ours(kind: Hint = MasConfig, path: str = "mas") -> Iterator[tuple[str, Hint]]:
    """Every setting of the team; `x` stands for the names of agents, policies, pools and servers."""
    for name, hint in settable(kind).items():
        inner, here = core_type(hint), f"{path}.{name}"
        yield here, hint
        if get_origin(inner) is dict:
            inner, here = get_args(inner)[1], f"{here}.x"
        if is_dataclass(inner) or is_typeddict(inner):
            yield from ours(inner, here)


def refused_by(hint: Hint) -> list[object]:
    return [value for value in WRONG if problems(hint, value, "it")]


def test_every_setting_of_verl_refuses_a_misspelt_key_and_names_the_right_one(make):
    config, paths = make(), [path for path, _ in verls()]
    for path in paths:
        OmegaConf.update(config, f"{path}x", 1, force_add=True)
    said = {error.value: error.fix for error in check_keys(config)}
    assert [path for path in paths if path not in said.get(f"{path}x is not a setting", "")] == []


def test_every_setting_of_verl_with_a_type_refuses_other_values_and_is_named(make):
    typed = {path: refused for path, hint in verls() if (refused := refused_by(hint))}
    assert len(typed) > 1000
    missed = []
    for number in range(max(map(len, typed.values()))):
        config, wrong = make(), {path: values[number] for path, values in typed.items() if number < len(values)}
        for path, value in wrong.items():
            OmegaConf.update(config, path, value, merge=False, force_add=True)
        said = {re.split(r"[=\[]", error.value)[0] for error in check_values(config)}
        missed += [f"{path}={value}" for path, value in wrong.items() if path not in said]
    assert missed == []


def test_every_setting_of_the_team_refuses_a_misspelt_key_and_other_values_and_is_named():
    for path, hint in ours():
        misspelt = (f"{path}x", 1, f"did you mean {path.rpartition('.')[2]!r}?")
        for where, value, says in [misspelt, *((path, value, path) for value in refused_by(hint))]:
            node = OmegaConf.create()
            OmegaConf.update(node, where, value, force_add=True)
            with pytest.raises(ConfigError) as refused:
                load(node.mas)
            assert where in str(refused.value) and says in str(refused.value)
