"""verl's vLLM server on the CPU with sleep mode, whose calls are checked. A plugin of verl, for tests."""

from typing import Any

from verl_mas.engines.kinds import vllm


def _replica() -> type[object]:
    import dataclasses

    import ray
    from recorder import SleepRecorder
    from verl_mas_vllm_cpu.server import CpuVllmReplica, CpuVllmServer

    class RecordedServer(CpuVllmServer):
        def _init_config(self, config: Any) -> Any:
            return dataclasses.replace(super()._init_config(config), free_cache_engine=True)

        async def launch_server(self, *args: Any, **kwargs: Any) -> None:
            await super().launch_server(*args, **kwargs)
            self.recorder = SleepRecorder(self.engine.output_processor.get_num_unfinished_requests)
            self.engine.sleep, self.engine.wake_up = self.recorder.sleep, self.recorder.wake_up

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            self.recorder.check_serves()
            return await super().generate(*args, **kwargs)

        async def set_global_steps(self, global_steps: int) -> None:
            """The end of a weight sync."""
            self.recorder.check_loads()
            await super().set_global_steps(global_steps)

    class RecordedReplica(CpuVllmReplica):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(RecordedServer)

    return RecordedReplica


def __getattr__(name: str) -> Any:
    """Make a class when verl imports it by its name, because the base classes need vLLM."""
    if name == "RecordedReplica":
        return _replica()
    if name != "RecordedAdapter":
        raise AttributeError(name)
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter
    from verl_mas_vllm_cpu.adapter import CpuServerAdapter

    # The CPU's adapter never sends sleep or wake_up, so take these methods from verl's adapter.
    return type(
        "RecordedAdapter", (CpuServerAdapter,), {"resume": ServerAdapter.resume, "release": ServerAdapter.release}
    )


vllm.CPU_REPLICA = f"{__name__}.RecordedReplica"
vllm.CPU_ADAPTER = f"{__name__}.RecordedAdapter"
