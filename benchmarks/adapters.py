"""Adapters on one base against a full set of weights per policy: `python benchmarks/adapters.py [--quick]`.

1. Decoding with 0, 1 and K adapters on one engine, and with the same adapters merged into copies of the base, one
   engine each. Ratios to the bare base.
2. Resident memory of a training worker and of an engine with 1, 2 and 4 adapters: what one more takes, over the
   adapter's parameters, gradients and Adam state. Beside it, those of one policy with full weights.
3. An update of the same rows by K adapters, a part each, against one update of full weights.
4. The bytes of a push to the engines, of K sets of full weights against K adapters; they grow with the rank.

Times are CPU seconds of one thread, so other programs change the ratios little. Memory is that of a fresh process per
case, after two updates or after a batch of replies.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from verl_mas.config.adapters import Adapter
from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.linear import use_onednn
from verl_mas.engines.transformers.lora import Adapters
from verl_mas.engines.transformers.request import Sampling
from verl_mas.engines.transformers.weights import pack
from verl_mas.warmup.tiny_model import tiny_model

RANK, MOST = 16, 4
ROWS, PROMPT, REPLY = 32, 16, 16
TRAINED_ROWS, LENGTH = 8, 64


def table(count: int) -> dict[str, Adapter]:
    optimizer = {"_target_": "verl.workers.config.FSDPOptimizerConfig", "lr": 1e-4, "total_training_steps": 10}
    names = [f"agent_{number}" for number in range(count)]
    return {name: Adapter(name, RANK, RANK, seed, actor={"optim": optimizer}) for seed, name in enumerate(names)}


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """What PEFT's `all-linear` means."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            yield name, module


def weights(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Of an adapter on all linears, by PEFT's names."""
    torch.manual_seed(seed)
    made = {}
    for name, linear in linears(model):
        made[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, linear.in_features) / 100
        made[f"base_model.model.{name}.lora_B.weight"] = torch.randn(linear.out_features, RANK) / 100
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
    return ContinuousBatcher(model, max_length=1024, adapters=adapters)


def submit(batcher: ContinuousBatcher, rows: int, names: Sequence[str | None], reply: int = REPLY) -> None:
    chance = random.Random(0)
    for row in range(rows):
        prompt = [chance.randrange(3, 259) for _ in range(PROMPT)]
        batcher.submit(prompt, Sampling(max_tokens=reply), names[row % len(names)])


def run(*batchers: ContinuousBatcher) -> None:
    for batcher in batchers:
        while not batcher.idle:
            batcher.step()


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def replies(batchers: Sequence[ContinuousBatcher], names: Sequence[str | None], repeats: int) -> float:
    def work(reply: int) -> None:
        for batcher in batchers:
            submit(batcher, ROWS // len(batchers), names, reply)
        run(*batchers)

    work(2)
    return seconds(lambda: work(REPLY), repeats)


def decoding(path: Path, repeats: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    copies = [ContinuousBatcher(merged(model, seed), max_length=1024) for seed in range(MOST)]
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
    report(f"decoding, {model.num_parameters() / 1e6:.1f}M parameters, rank {RANK}, {ROWS} rows; bare base: x 1.00")
    report(*[f"  {name}: x {taken / base:.2f}" for name, taken in cases.items()])


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def engine_process(path: Path, count: int) -> dict[str, float]:
    """An engine that has served a batch. Without adapters: an engine of full weights."""
    batcher = engine(AutoModelForCausalLM.from_pretrained(path).eval(), count)
    submit(batcher, MOST * 2, list(table(count)) or [None])
    run(batcher)
    return {"resident": resident()}


def training_process(path: Path, count: int) -> dict[str, float]:
    """A training worker after two updates. Without adapters: of full weights."""
    # verl's modules read these as they are imported.
    os.environ |= {"VERL_PLATFORM": "cpu", "MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    from verl_mas.trainer.adapters.engine import CpuAdapterEngine

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = HFModelConfig(
        path=str(path),
        lora_rank=RANK if count else 0,
        use_remove_padding=False,
        override_config={"attn_implementation": "sdpa"},
    )
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    kind = FSDPEngineConfig(strategy="fsdp2", mixed_precision=precision, use_torch_compile=False)
    optimizer = FSDPOptimizerConfig(lr=1e-4, total_training_steps=10)
    full = EngineRegistry.get_engine_cls("language_model", "fsdp2")
    made = (CpuAdapterEngine if count else full)(model, kind, optimizer, CheckpointConfig())
    if isinstance(made, CpuAdapterEngine):
        made.adapters = table(count)
    made.initialize()
    rows = torch.randint(3, 259, (TRAINED_ROWS, LENGTH))

    def update(part: torch.Tensor) -> None:
        with made.train_mode():
            # A row at a time, so that activations take the same memory whatever the number of adapters.
            for row in part.split(1):
                logits = made.module(input_ids=row, use_cache=False).logits[0, :-1]
                (nn.functional.cross_entropy(logits, row[0, 1:]) / len(part)).backward()
            made.optimizer_step()
            made.optimizer_zero_grad()

    def updates() -> None:
        if not isinstance(made, CpuAdapterEngine):
            return update(rows)
        for name, part in zip(table(count), rows.chunk(count), strict=True):
            with made.adapter(name):
                update(part)
        return None

    updates()
    taken = seconds(updates, repeats=1)
    used = resident()
    stream, _ = made.get_per_tensor_param(base_sync_done=True)
    sent = sum(packed.data.nbytes for bucket in pack(stream, 1 << 30) for packed in bucket)
    return {"resident": used, "seconds": taken, "sent": sent}


def measured(kind: str, path: Path, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", kind, "--model", str(path), "--count", str(count)]
    found = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    parsed: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return parsed


def memory(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    own = sum(tensor.numel() for tensor in weights(model, 0).values())
    state = 16 * own
    report(
        f"memory, {model.num_parameters() / 1e6:.1f}M parameters; parameters, gradients and Adam state in float32 are "
        f"{model.num_parameters() * 16 / 1e6:.0f} MB of the full weights, and {state / 1e6:.0f} MB of an adapter, "
        f"which has {own / 1e6:.1f}M at rank {RANK}"
    )
    del model
    for kind in CHILDREN:
        found = {count: measured(kind, path, count) for count in (0, 1, 2, MOST)}
        held = ", ".join(f"K={count or 'full'} {one['resident'] / 1e6:.0f} MB" for count, one in found.items())
        growth = (found[MOST]["resident"] - found[1]["resident"]) / (MOST - 1)
        report(
            f"  {kind}: {held}", f"    growth per adapter: {growth / 1e6:.0f} MB, x {growth / state:.2f} (wanted <= 3)"
        )
        if kind == "trainer":
            full = found.pop(0)
            report(
                "  an update of the same rows, over full weights': "
                + ", ".join(f"K={count} x {one['seconds'] / full['seconds']:.2f}" for count, one in found.items()),
                f"  a push of K sets of full weights, {full['sent'] / 1e6:.0f} MB each, over that of K adapters: "
                + ", ".join(f"K={count} x {full['sent'] * count / one['sent']:.1f}" for count, one in found.items()),
            )


CHILDREN = {"engine": engine_process, "trainer": training_process}


def report(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a base of 1M parameters in place of 100M")
    parser.add_argument("--only", choices=["decoding", "memory"], help="one part")
    for option, kind in (("--child", str), ("--model", Path), ("--count", int)):
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        report(json.dumps(CHILDREN[options.child](options.model, options.count)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model(folder, parameters=1_000_000 if options.quick else 100_000_000)
        if options.only != "memory":
            decoding(path, repeats=2)
        if options.only != "decoding":
            memory(path)


if __name__ == "__main__":
    main()
