"""What of verl's own settings a team cannot be trained with."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from verl_mas.config.merge import SECTION, trained
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError

TRAINER_MODE = "mas"


def check_trainer(config: DictConfig, mas: MasConfig) -> None:
    mode = config.trainer.v1.trainer_mode
    for wrong, value, rule, fix in (
        (mode != TRAINER_MODE, f"trainer.v1.trainer_mode={mode}", "a team is trained by mode mas", "use +mas=<team>"),
        (
            not config.trainer.use_v1,
            "trainer.use_v1=False",
            "teams need verl's V1 trainer",
            "remove that override",
        ),
        (
            not config[SECTION].hybrid_engine,
            f"{SECTION}.hybrid_engine=False",
            "policies train and serve on the same GPUs",
            f"set {SECTION}.hybrid_engine=True",
        ),
        (
            _wants_critic(config),
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}",
            "a critic would need one value model per policy; groups of sessions are the baseline here",
            "algorithm.adv_estimator=agent_grpo, and critic.enable unset",
        ),
        (
            bool(config.algorithm.use_kl_in_reward),
            "algorithm.use_kl_in_reward=True",
            "a reward is shared by agents on different policies, each with its own reference",
            f"set {SECTION}.actor.use_kl_loss=True (or per policy, in mas.policies.<policy>.overrides.actor)",
        ),
        (
            not config.algorithm.norm_adv_by_std_in_grpo,
            "algorithm.norm_adv_by_std_in_grpo=False",
            "a team's estimators read mas.advantage",
            "++mas.advantage.scale=none instead",
        ),
        (
            bool(OmegaConf.select(config, "distillation.enabled")),
            "distillation.enabled=True",
            "a teacher of a team is not supported",
            "distillation.enabled=False",
        ),
        (
            bool(config.reward.reward_model.enable and not config.reward.reward_model.enable_resource_pool),
            "reward.reward_model.enable=True on the policies' GPUs",
            "a session is scored when it ends, while the engines are awake",
            "reward.reward_model.enable_resource_pool=True with GPUs of its own",
        ),
        (
            not trained(mas) and not config.trainer.val_only,
            "no policy is trainable",
            "training needs a policy with weights to train",
            "make a policy trainable, or set trainer.val_only=True",
        ),
    ):
        if wrong:
            raise ConfigError(value, rule=rule, fix=fix)


def _wants_critic(config: DictConfig) -> bool:
    return bool(config.critic.enable) or (config.critic.enable is None and config.algorithm.adv_estimator == "gae")
