"""Registers the parts of verl-mas with verl, which imports this module in every process (entry point `verl.plugins`).

Each registry of verl is filled when verl first imports it, so that `import verl` does not become slower. An error in a
hook is raised where verl's module is imported. verl hides an error in *this* module, so a run that needs the plugin
checks `active()`.
"""

import sys

from wrapt import register_post_import_hook

from verl_mas.util import worker_folder

# Module of verl -> our function that runs when the module has been imported.
HOOKS = {
    "verl.plugin.platform.platform_manager": "verl_mas.engines.platform.cpu:register",
    "verl.single_controller.ray.base": "verl_mas.engines.platform:keep_ports",
    "verl.utils.distributed": "verl_mas.engines.platform:patch_process_group",
    "verl.utils.torch_functional": "verl_mas.engines.platform.log_probs:patch",
    "verl.workers.engine.fsdp.transformer_impl": "verl_mas.engines.platform:register_training_engine",
    "verl.trainer.ppo.v1.replay_buffer": "verl_mas.engines.platform:read_poll_interval",
    "verl.trainer.ppo.core_algos": "verl_mas.advantage.verl_hook:register_estimators",
    "verl.trainer.ppo.v1": "verl_mas.checks:register_trainer",
    "verl.workers.rollout.base": "verl_mas.engines.facts:register_adapters",
    "verl.workers.rollout.replica": "verl_mas.engines.facts:register_replicas",
}


def active() -> bool:
    """Whether the plugin is loaded in this process."""
    return getattr(sys.modules.get(__name__), "_active", False)


for _module, _registrar in HOOKS.items():
    register_post_import_hook(_registrar, _module)
worker_folder.enter()
_active = True
