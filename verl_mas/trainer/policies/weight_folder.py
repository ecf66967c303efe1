"""Transfers weights through a folder. A snapshot gets the weights of a trained policy this way, with any engine.

The module is a checkpoint engine of verl. Workers of the trained policy write the folder. Workers next to the
snapshot's engines read it and pass the weights on. verl imports this module in both kinds of workers.
"""

import json
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import torch
from omegaconf import DictConfig, open_dict
from safetensors import safe_open
from safetensors.torch import save_file
from verl.checkpoint_engine.base import CheckpointEngineRegistry, ColocatedCheckpointEngine
from verl.utils.device import get_device_id, get_torch_device

from verl_mas.run_folder.disk import replaced

BACKEND = "verl_mas_folder"
# This file is written last, so a folder without this file is incomplete.
RECORD = "snapshot.json"


@CheckpointEngineRegistry.register(BACKEND)
class WeightFolder(ColocatedCheckpointEngine):
    """A checkpoint engine that uses a folder. Call `use` with the folder before each transfer."""

    def __init__(self, bucket_size: int, is_master: bool = False):
        super().__init__(bucket_size, is_master)
        self._is_writer = is_master
        self._folder = Path()

    def use(self, folder: str) -> None:
        self._folder = Path(folder)

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        if self._is_writer:
            write(self._folder, weights, global_steps or 0, self.bucket_size)
        else:
            for _ in weights:
                """Take every tensor, because all workers must take part in gathering it."""

    def receive_weights(  # type: ignore[override]  # not async, as in verl's colocated class
        self, global_steps: int | None = None
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        device = get_device_id() if get_torch_device().is_available() else "cpu"
        return ((name, tensor.to(device)) for name, tensor in read(self._folder))


def use_folder(view: DictConfig) -> None:
    """Make a policy's workers use this checkpoint engine. verl's transfer to the policy's own engines is unchanged."""
    with open_dict(view):
        engine = view.actor_rollout_ref.rollout.checkpoint_engine
        engine.backend, engine.custom_backend_module = BACKEND, __name__


def write(folder: Path, weights: Iterable[tuple[str, torch.Tensor]], step: int, file_bytes: int) -> None:
    """Replace the folder's content by files of about `file_bytes`, with weights under the model checkpoint's names."""
    with replaced(folder) as new:
        for number, tensors in enumerate(_parts(weights, file_bytes)):
            save_file(tensors, new / f"{number:05d}.safetensors")
        record(new, step)


def record(folder: Path, step: int) -> None:
    (folder / RECORD).write_text(json.dumps({"step": step}))


def step_of(folder: Path) -> int:
    """Return the step of the weights in a folder: the policy had these weights after this training step."""
    return int(json.loads((folder / RECORD).read_text())["step"])


def read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors one by one."""
    step_of(folder)  # Raises if the folder is missing or incomplete; without this check, no error would be raised.
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                yield name, file.get_tensor(name)


def _parts(weights: Iterable[tuple[str, torch.Tensor]], file_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        # Copy each tensor, because tied weights share memory, and safetensors refuses tensors that share memory.
        part[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.nbytes
        if size >= file_bytes:
            yield part
            part, size = {}, 0
    if part:
        yield part
