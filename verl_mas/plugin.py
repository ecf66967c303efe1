"""What verl's `verl.plugins` entry point imports, in every process that imports verl.

Each of verl's registries is filled when verl itself first imports it, so that `import verl` stays as fast
as without us. An error in a hook reaches whoever imported verl's module; only an error in *this* module is
swallowed by verl, which is why runs that need us check `active()`.
"""

from __future__ import annotations

import sys

from wrapt import register_post_import_hook

# verl's module -> our function that registers with it.
HOOKS = {
    "verl.plugin.platform.platform_manager": "verl_mas.platform:register_platform",
    "verl.utils.distributed": "verl_mas.platform:patch_process_group",
    "verl.workers.engine.fsdp.transformer_impl": "verl_mas.platform:register_training_engine",
    "verl.trainer.ppo.core_algos": "verl_mas.advantage.verl_hook:register_estimators",
    "verl.trainer.ppo.v1": "verl_mas.checks:register_trainer",
    "verl.workers.rollout.base": "verl_mas.engines:register_adapters",
    "verl.workers.rollout.replica": "verl_mas.engines:register_replicas",
}


def active() -> bool:
    """Whether verl (or anyone) has loaded the plugin in this process."""
    return getattr(sys.modules.get(__name__), "_active", False)


for _module, _registrar in HOOKS.items():
    register_post_import_hook(_registrar, _module)
_active = True
