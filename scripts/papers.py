"""Convert every training script of Dr. MAS and every configuration of PettingLLMs, and check the commands.

    python scripts/papers.py runs/papers

The script fetches both repositories at the commits of convert_config.yaml and writes small data files with the columns
of their data. It checks each command for the number of GPUs that the file asks for, with 80 GB each, and prints the
result of each file. It fails if a command is refused or if the number of accepted files is not the expected number.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import convert_config as convert
import pandas
import verl.trainer.main_ppo  # noqa: F401  (imported before the fork, so that each fork has it)

import verl_mas.cli

# Repository, commit, folders, and the expected number of files whose commands are accepted.
DRMAS = ("https://github.com/langfengQ/DrMAS", "19c632b", ["examples"], 11)
PETTINGLLMS = ("https://github.com/pettingllms-ai/PettingLLMs", "a054fb1", ["pettingllms/config"], 14)
TRAINERS = ("dapo", "drmas", "gigpo", "grpo", "ppo", "rloo")
MODEL = [f"base_models.policy_{i}.path=Qwen/Qwen3-8B" for i in (0, 1)] + ["models.model_0.path=Qwen/Qwen3-8B"]


def fetched(folder: Path, url: str, commit: str, paths: list[str]) -> Path:
    target = folder / url.rpartition("/")[2]
    if not target.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", url, target], check=True)
        subprocess.run(["git", "-C", target, "checkout", "--quiet", commit, "--", *paths], check=True)
    return target


def math_row(split: str, index: int) -> dict[str, Any]:
    """Return a row with the columns of Dr. MAS's examples/data_preprocess."""
    question, answer = f"What is {index} + {index * 7}?", str(index * 8)
    return {
        "data_source": "dapo_filter",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "prompt": [{"role": "user", "content": question}],
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
        "env_kwargs": {"ground_truth": answer, "question": question, "data_source": "dapo_filter"},
    }


def search_row(split: str, index: int) -> dict[str, Any]:
    row, truth = math_row(split, index), {"target": [str(index * 8)]}
    system = {"role": "system", "content": "You answer questions."}
    reward = {"style": "rule", "ground_truth": truth}
    env = {**row["env_kwargs"], "ground_truth": truth, "data_source": "nq"}
    return row | {"data_source": "nq", "prompt": [system, *row["prompt"]], "reward_model": reward, "env_kwargs": env}


def write_data(home: Path) -> None:
    for name, row in (("math", math_row), ("search", search_row)):
        folder = home / "data" / f"drmas_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for split, size in (("train", 2000), ("test", 200), ("test_sampled", 110)):
            pandas.DataFrame(row(split, i) for i in range(size)).to_parquet(folder / f"{split}.parquet")


def files(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the kind, the file, and the settings that a user has to add, such as a model in place of a placeholder."""
    for trainer in TRAINERS:
        for script in sorted(fetched(folder, *DRMAS[:3]).glob(f"examples/{trainer}_trainer/*.sh")):
            yield "drmas", script, []
    for config in sorted(fetched(folder, *PETTINGLLMS[:3]).glob("pettingllms/config/*/*.yaml")):
        if config.parent.name != "ppo_trainer":
            yield "pettingllms", config, MODEL


def judged(kind: str, file: Path, given: list[str], home: Path) -> str:
    """Convert and check a file, and return the result: one line, and a line per error. Changes HOME and the working
    folder, so run it in a separate process."""
    os.environ["HOME"] = str(home)
    os.chdir(home)
    try:
        command = printed(convert.main, kind, str(file), *given)
    except SystemExit as refusal:
        return " ".join(str(refusal).split())
    words = shlex.split(command.replace("\\\n", " "))[3:]
    gpus = next(word.partition("=")[2] for word in words if word.startswith("++trainer.n_gpus_per_node="))
    report = json.loads(printed(verl_mas.cli.main, ["check", "--gpus", f"{gpus}x80", "--json", *words]))
    return report["verdict"] + "".join(f"\n    {error['value']}: {error['rule']}" for error in report["errors"])


def printed(call: Callable[..., object], *arguments: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        call(*arguments)
    return out.getvalue()


def main(folder: str) -> None:
    home = Path(folder, "home").resolve()
    write_data(home)
    accepted = Counter[str]()
    # Use forks, because they share verl's imports, which take longer than a check.
    pool = multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1)
    for kind, file, given in files(Path(folder).resolve()):
        verdict = pool.apply(judged, (kind, file, given, home))
        accepted[kind] += verdict.startswith("accepted")
        sys.stdout.write(f"{kind} {file.parent.name}/{file.name}: {verdict}\n")
        sys.stdout.flush()
        accepted["refused"] += verdict.startswith("refused")
    sys.stdout.write(f"{dict(accepted)}\n")
    sys.exit(bool(accepted["refused"]) or (accepted["drmas"], accepted["pettingllms"]) != (DRMAS[3], PETTINGLLMS[3]))


if __name__ == "__main__":
    main(sys.argv[1])
