"""Compare adapters on one base with full weights: `python benchmarks/adapters.py [--quick] [--only decoding|training]`.

1. Decoding with 0, 1 and 4 adapters on one engine, and with the same adapters merged into copies of the base, each copy
   on its own engine. Times are divided by the time of the base without adapters.
2. Growth of a training worker's and an engine's resident memory with each further adapter, from 1 to 2 to 4 adapters,
   divided by the memory of an adapter's parameters, gradients and Adam state. Limit: 3.
3. Time of a step with K adapters, divided by the time of a step of one policy with full weights. Both steps update on
   the same rows (forward, backward, optimiser), of which each adapter gets a part, and push all weights. Limit: 1.15.
4. Bytes of a push of one policy's full weights, divided by those of one adapter, at ranks 16 and 32. Limit: 20.

Each time is the least of several repeats, in CPU seconds of one thread. Memory is measured in a fresh process per case,
after two updates or after a batch of replies. A push is gathered, packed and loaded by a model in the same process. So
it lacks Ray's copy through shared memory, whose time grows with the bytes. An idle machine takes about 5 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from engine import report, seconds
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from verl_mas.config.adapters import Adapter
from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.lora import Adapters, AdapterUpdate
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import use_onednn
from verl_mas.engines.transformers.weights import Packed, WeightUpdate, pack
from verl_mas.testing.tiny_model import tiny_model

if TYPE_CHECKING:
    from verl_mas.trainer.adapters.engine import FsdpAdapterEngine

RANKS, MOST = (16, 32), 4
COUNTS = (1, 2, MOST)
ROWS, PROMPT, REPLY = 32, 16, 16
TRAINED_ROWS, LENGTH = 8, 64
STATE = 16
"""Bytes per parameter: parameter, gradient and two moments in float32."""
BUCKET = 512 << 20


def table(count: int, rank: int = RANKS[0]) -> dict[str, Adapter]:
    optimizer = {"_target_": "verl.workers.config.FSDPOptimizerConfig", "lr": 1e-4, "total_training_steps": 10}
    names = [f"agent_{number}" for number in range(count)]
    return {name: Adapter(name, rank, rank, seed, actor={"optim": optimizer}) for seed, name in enumerate(names)}


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers that PEFT's `all-linear` selects, with their names."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            yield name, module


def weights(model: nn.Module, seed: int, rank: int = RANKS[0]) -> dict[str, torch.Tensor]:
    """Make random weights of an adapter on all linear layers. Return PEFT's name -> weight."""
    torch.manual_seed(seed)
    made = {}
    for name, linear in linears(model):
        made[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, linear.in_features) / 100
        made[f"base_model.model.{name}.lora_B.weight"] = torch.randn(linear.out_features, rank) / 100
    return made


def merged(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    made, given = copy.deepcopy(model), weights(model, seed)
    for name, linear in linears(made):
        key = f"base_model.model.{name}"
        linear.weight.data += given[f"{key}.lora_B.weight"] @ given[f"{key}.lora_A.weight"]
    return made


def engine(model: PreTrainedModel, count: int) -> ContinuousBatcher:
    use_onednn(model)
    adapters = Adapters(model, table(count))
    for seed, name in enumerate(table(count)):
        adapters.update(name, weights(model, seed))
    return ContinuousBatcher(model, max_length=1024, decode=str, adapters=adapters)


def submit(batcher: ContinuousBatcher, rows: int, names: Sequence[str | None], reply: int = REPLY) -> None:
    chance = random.Random(0)
    for row in range(rows):
        prompt = [chance.randrange(3, 259) for _ in range(PROMPT)]
        batcher.submit(prompt, RequestSampling(max_tokens=reply), names[row % len(names)])


def run(*batchers: ContinuousBatcher) -> None:
    for batcher in batchers:
        while not batcher.idle:
            batcher.step()


def replies(batchers: Sequence[ContinuousBatcher], names: Sequence[str | None], repeats: int) -> float:
    def work(reply: int) -> None:
        for batcher in batchers:
            submit(batcher, ROWS // len(batchers), names, reply)
        run(*batchers)

    work(2)
    return seconds(lambda: work(REPLY), repeats)


def decoding(path: Path, repeats: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    copies = [ContinuousBatcher(merged(model, seed), max_length=1024, decode=str) for seed in range(MOST)]
    for one in copies:
        use_onednn(one.model)
    served = engine(model, MOST)
    names = list(table(MOST))
    base = replies([served], [None], repeats)
    cases = {
        "one adapter": replies([served], names[:1], repeats),
        f"{MOST} adapters in one batch": replies([served], names, repeats),
        f"{MOST} adapters and the base in one batch": replies([served], [None, *names], repeats),
        f"{MOST} merged copies, {ROWS // MOST} rows each": replies(copies, [None], repeats),
    }
    report(f"decoding, {model.num_parameters() / 1e6:.1f}M parameters, rank {RANKS[0]}, {ROWS} rows; bare base: x 1.00")
    report(*[f"  {name}: x {taken / base:.2f}" for name, taken in cases.items()])


def resident() -> int:
    """Return the resident bytes of this process.

    Freed memory first goes back to the system, because memory that the allocator keeps may hide an adapter's memory.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def engine_process(path: Path, count: int, rank: int) -> dict[str, float]:
    """Measure an engine after it served a batch. With `count` 0, the engine has full weights and no adapters."""
    batcher = engine(AutoModelForCausalLM.from_pretrained(path).eval(), count)
    submit(batcher, MOST * 2, list(table(count)) or [None])
    run(batcher)
    return {"resident": resident()}


def training_process(path: Path, count: int, rank: int) -> dict[str, float]:
    """Measure a training worker after two updates. With `count` 0, the worker trains full weights."""
    made = training_engine(path, count, rank)
    torch.manual_seed(0)
    rows = torch.randint(3, 259, (TRAINED_ROWS, LENGTH))

    def update(part: torch.Tensor) -> None:
        with made.train_mode():
            # Train one row at a time, so that activations take the same memory for any number of adapters.
            for row in part.split(1):
                logits = made.module(input_ids=row, use_cache=False).logits[0, :-1]
                (nn.functional.cross_entropy(logits, row[0, 1:]) / len(part)).backward()
            made.optimizer_step()
            made.optimizer_zero_grad()

    def updates() -> None:
        if not count:
            return update(rows)
        for name, part in zip(table(count), rows.chunk(count), strict=True):
            with made.adapter(name):
                update(part)
        return None

    updates()
    updates()
    found: dict[str, float] = {"resident": resident(), "update": seconds(updates, repeats=3)}
    served = AutoModelForCausalLM.from_pretrained(path)
    adapters = Adapters(served, table(count, rank))

    def push() -> None:
        taken = AdapterUpdate(adapters) if count else WeightUpdate(served)
        send(made, taken.load)
        taken.finish()

    push()
    found["push"] = seconds(push, repeats=3)
    return found


def push_process(path: Path, count: int, rank: int) -> dict[str, float]:
    """Measure the bytes that a training worker sends to an engine. With `count` 0, it sends full weights."""
    sizes: list[int] = []
    send(training_engine(path, count, rank), lambda bucket: sizes.extend(packed.data.nbytes for packed in bucket))
    return {"bytes": sum(sizes)}


def send(made: FsdpAdapterEngine, take: Callable[[list[Packed]], object]) -> None:
    async def buckets() -> None:
        stream, _ = made.get_per_tensor_param(base_sync_done=True)
        async for bucket in pack(stream, BUCKET):
            take(bucket)

    asyncio.run(buckets())


def training_engine(path: Path, count: int, rank: int) -> FsdpAdapterEngine:
    """Make the training engine of a worker. With `count` 0, it is verl's own engine, with full weights."""
    # verl's modules read these variables on import.
    os.environ |= {"VERL_PLATFORM": "cpu", "MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    from verl_mas.trainer.adapters.engine import CpuAdapterEngine

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = HFModelConfig(
        path=str(path),
        lora_rank=rank if count else 0,
        use_remove_padding=False,
        override_config={"attn_implementation": "sdpa"},
    )
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    kind = FSDPEngineConfig(strategy="fsdp2", mixed_precision=precision, use_torch_compile=False)
    optimizer = FSDPOptimizerConfig(lr=1e-4, total_training_steps=10)
    full = EngineRegistry.get_engine_cls("language_model", "fsdp2")
    made: FsdpAdapterEngine = (CpuAdapterEngine if count else full)(model, kind, optimizer, CheckpointConfig())
    if count:
        made.adapters = table(count, rank)
    made.initialize()
    return made


def measured(kind: str, path: Path, count: int, rank: int = RANKS[0]) -> dict[str, float]:
    case = ["--model", str(path), "--count", str(count), "--rank", str(rank)]
    command = [sys.executable, __file__, "--child", kind, *case]
    found = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    parsed: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return parsed


def training(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    state = STATE * sum(tensor.numel() for tensor in weights(model, 0).values())
    report(
        f"{model.num_parameters() / 1e6:.1f}M parameters; parameters, gradients and Adam state in float32: "
        f"{STATE * model.num_parameters() / 1e6:.0f} MB of the full weights, {state / 1e6:.1f} MB of an adapter of "
        f"rank {RANKS[0]} on all linears"
    )
    del model
    engines, trainers = (
        {count: measured(kind, path, count) for count in (0, *COUNTS)} for kind in ("engine", "trainer")
    )
    report("resident memory; growth per adapter over its parameters, gradients and Adam state, limit x 3")
    for kind, found in (("engine", engines), ("trainer", trainers)):
        held = {count: one["resident"] for count, one in found.items()}
        growth = {(few, many): (held[many] - held[few]) / (many - few) for few, many in ((1, 2), (2, MOST), (1, MOST))}
        report(
            f"  {kind}: " + ", ".join(f"K={count or 'full'} {one / 1e6:.0f} MB" for count, one in held.items()),
            "    growth: " + ", ".join(f"K={few} to {many} x {one / state:.2f}" for (few, many), one in growth.items()),
        )
    full = trainers[0]
    whole = full["update"] + full["push"]
    report(f"a step of the same rows over that of one policy with full weights ({whole:.1f} s), limit x 1.15")
    for count in COUNTS:
        update, push = trainers[count]["update"], trainers[count]["push"]
        report(
            f"  K={count}: x {(update + push) / whole:.2f} (update x {update / full['update']:.2f}, push x "
            f"{push / full['push']:.3f})"
        )
    sent = measured("push", path, 0)["bytes"]
    report(
        f"bytes of a push: one policy's full weights ({sent / 1e6:.1f} MB) over those of adapters, limit x 20 for one"
    )
    for count, rank in ((1, RANKS[0]), (1, RANKS[1]), (MOST, RANKS[0])):
        own = measured("push", path, count, rank)["bytes"]
        report(f"  K={count} of rank {rank}: x {sent / own:.1f} ({own / 1e6:.1f} MB)")


CHILDREN = {"engine": engine_process, "trainer": training_process, "push": push_process}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a base of 1M parameters in place of 100M")
    parser.add_argument("--only", choices=["decoding", "training"], help="one part")
    for option, kind in (("--child", str), ("--model", Path), ("--count", int), ("--rank", int)):
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        report(json.dumps(CHILDREN[options.child](options.model, options.count, options.rank)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model(folder, parameters=1_000_000 if options.quick else 100_000_000)
        if options.only != "training":
            decoding(path, repeats=2)
        if options.only != "decoding":
            training(path)


if __name__ == "__main__":
    main()
