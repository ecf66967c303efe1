import os
import subprocess

import pytest
import torch
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_mas.engines.platform import cpu_device
from verl_mas.engines.platform.cpu import PlatformCPU


def test_the_cpu_is_registered_and_never_chosen_by_itself():
    assert PlatformRegistry.get("cpu") is PlatformCPU
    assert not PlatformCPU().is_platform_available(use_smi_check=True)


def test_the_device_module_has_what_torch_cpu_lacks():
    free, total = cpu_device.mem_get_info()
    assert 0 < free <= total
    assert 0 < cpu_device.memory_allocated() <= 1.5 * cpu_device.max_memory_allocated()
    assert cpu_device.is_available() is torch.cpu.is_available()
    with pytest.raises(AttributeError):
        _ = cpu_device.no_such_function


def test_without_the_choice_verl_is_not_touched(warm_python):
    program = (
        "import verl.utils.distributed as d\n"
        "from verl.utils.device import get_device_name\n"
        "print(get_device_name(), d.initialize_global_process_group.__code__.co_filename == d.__file__)"
    )
    command, env = [warm_python, "-c", program], os.environ | {"VERL_PLATFORM": ""}
    assert subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout.split() == [
        "cuda",
        "True",
    ]
