"""SGLang itself in tests: its scheduler on the CPU, in the environment of `make sglang-cpu`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from verl_mas.util import installed_version

PLUGIN = Path(__file__).parent / "sglang_cpu"
VERSION = installed_version("sglang")
MISSING = "SGLang is not installed; `make sglang-cpu` creates an environment that has it"
needs_sglang = pytest.mark.skipif(VERSION is None, reason=MISSING)
# verl sends an adapter in a message that older versions do not have.
needs_adapters = pytest.mark.skipif(
    VERSION is not None and Version(VERSION) < Version("0.5.17"), reason=f"SGLang {VERSION} takes no adapters of verl"
)
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS = {
    "device": "cpu",
    # None of these backends calls a kernel.
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "lora_backend": "torch_native",
    "grammar_backend": "none",
    "disable_custom_all_reduce": True,
    # These two features need CUDA. Without a memory saver, releasing and resuming memory are accepted but free nothing.
    "enable_memory_saver": False,
    "disable_overlap_schedule": True,
    # The default is half of the machine's memory.
    "max_total_tokens": 16384,
    "sleep_on_idle": True,
}


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make SGLang work on the CPU in the processes that a test starts."""
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN), prepend=os.pathsep)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


class Engines:
    """Starts engines of SGLang in this process, which a dying scheduler does not end.

    A context. One engine runs at a time; the same options as before give the same engine.
    """

    def __init__(self, step_s: float):
        """Start an engine. Each forward pass takes `step_s` seconds longer."""
        self.deaths: list[str] = []
        self._step_s = step_s
        self._options: tuple[str, dict[str, Any]] | None = None
        self._manager: Any = None
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Engines:
        self._patch = pytest.MonkeyPatch()
        use(self._patch)
        sys.path.insert(0, str(PLUGIN))
        import sglang_cpu  # noqa: F401
        from sglang.srt.managers.tokenizer_manager import SignalHandler

        self._patch.setattr(SignalHandler, "running_phase_sigquit_handler", self._died)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        sys.path.remove(str(PLUGIN))
        self._patch.undo()

    def _died(self, *_: object) -> None:
        self._stop()
        self._options = None
        self.deaths.append("died")

    async def start(self, path: str, **options: Any) -> Any:
        from sglang.srt.entrypoints import engine
        from sglang.srt.managers.io_struct import SlowDownReqInput
        from sglang.srt.server_args import ServerArgs

        if self._options == (path, options):
            return self._manager
        self._stop()
        before = multiprocessing.active_children()
        self._manager, *_, watchdog = engine.Engine._launch_subprocesses(  # noqa: SLF001
            server_args=ServerArgs(path, **OPTIONS, dtype="float32", log_level="error", **options),
            init_tokenizer_manager_func=engine.init_tokenizer_manager,
            run_scheduler_process_func=engine.run_scheduler_process,
            run_detokenizer_process_func=engine.run_detokenizer_process,
        )[:5]
        processes = [child for child in multiprocessing.active_children() if child not in before]

        def stop() -> None:
            # Stop watching the processes, or their normal end would be reported as a crash.
            watchdog.stop()
            for process in processes:
                process.kill()

        self._stop, self._options = stop, (path, options)
        await self._manager.slow_down(SlowDownReqInput(forward_sleep_time=self._step_s))
        return self._manager
