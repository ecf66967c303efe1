"""Install the wheel as users do, and run every command of the installed `verl-mas`.

    python scripts/try_installs.py

It builds the wheel. Then it makes an environment without extras, and an environment for each set of this project's
extras that an install command in the documentation names. The extras of GPU engines are skipped, because no listed
command needs these engines, and they take gigabytes. A command whose extra is not installed must print an error whose
`fix:` names the extra. After any other failure, this script exits with 1.

    python scripts/try_installs.py --installed .venv/bin/verl-mas        # the commands alone, in that environment
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from resolve_installs import OF_GPUS, documented

ROOT = Path(__file__).parents[1]
TIME_LIMIT = 900  # seconds per command
ROW = '{"question": "2 + %d = ?", "answer": "%d"}\n'
FILES = {
    "train.jsonl": "".join(ROW % (number, 2 + number) for number in range(8)),
    "test.jsonl": "".join(ROW % (number, 2 + number) for number in range(8, 12)),
    "corpus.jsonl": '{"id": "0", "contents": "\\"Paris\\"\\nThe capital of France."}\n',
    "tasks.jsonl": '{"question": "Print 5.", "tests": [{"input": "", "output": "5"}], "golden": "print(5)"}\n',
    "exam.jsonl": '{"question": "Print 6.", "tests": [{"input": "", "output": "6"}], "golden": "print(6)"}\n',
}
ROWS = "--train train.jsonl --test exam=test.jsonl"
FEW = "--train-rows 8 --test-rows 4"
# After `#`: the text of the error if a package is missing. Later commands read files that earlier commands wrote.
COMMANDS = f"""
--version
doctor
completion bash
list
list teams
list recipes
list workflows
list estimators
list worlds
list codecs
list commit-rules
list graders
list executors
list engines
list metrics
list data
list puzzles
new my_team --tiny-model
new my_program --framework openai --tiny-model
try my_team/my_team.py:MyTeam --task "2 + 3 = ?" --truth 5 --reply "<answer>5</answer>"
try solver_verifier
try world --args world=open_spiel/tic_tac_toe  # open-spiel
try world --args world=textarena/TicTacToe-v0  # textarena
try world --args world=pettingzoo/classic/tictactoe_v3  # pettingzoo
data rows train.jsonl --out my_team/train.parquet --source my_team
data rows test.jsonl --out my_team/test.parquet --source my_team --split test
data arithmetic --out d/arithmetic {FEW}
data programs --out d/programs {FEW}
data invented --out d/invented --entities 200 {FEW}
data lookup --out d/lookup {FEW}
data guide_driver --out d/guide_driver {FEW}
data puzzle plan_path --out d/plan_path {FEW}
data smollm2 --no-model --out d/smollm2 {FEW}
data split_clues --out runs/split_clues --noise 0.6 --warm-up steps=20
data math {ROWS} --out d/math
data tool_math {ROWS} --out d/tool_math
data search {ROWS} --out d/search
data code --train tasks.jsonl --test exam=exam.jsonl --out d/code
data reasoning_gym maze --out d/maze {FEW}  # reasoning-gym
data world open_spiel/tic_tac_toe --out d/tic_tac_toe {FEW}  # open-spiel
data self_play open_spiel/tic_tac_toe --out d/self_play {FEW}  # open-spiel
data world textarena/TicTacToe-v0 --out d/textarena {FEW}  # textarena
data world pettingzoo/classic/tictactoe_v3 --out d/pettingzoo {FEW}  # pettingzoo
data verifiers gsm8k --out d/verifiers  # verifiers
retriever build --corpus corpus.jsonl --index index  # search
retriever query --index index capital  # retriever build
retriever serve --help
check +platform=cpu +recipe=split_clues/laptop
check --schema
plan +recipe=math/shared --gpus 1x24,4x80
demo trainer.total_training_steps=3 trainer.test_freq=3 trainer.save_freq=3
view runs/demo/checkpoints --out view.html
report runs/demo/checkpoints --out report
export-sessions runs/demo/checkpoints --format otel --out sessions.json
export runs/demo/checkpoints --out team
eval team --data runs/demo/test.parquet --limit 2 --n 1
serve --help
"""


def commands() -> Iterator[tuple[list[str], str]]:
    """Yield the words of each command, and the text that its error contains if a package is missing (else empty)."""
    for line in filter(None, COMMANDS.splitlines()):
        words, _, lacks = line.partition("  # ")
        yield shlex.split(words), lacks


def run(program: Path, extras: frozenset[str]) -> list[str]:
    """Run every command, and return a description of each failure."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
        for words, lacks in commands():
            code, output = answer([str(program), *words], folder, environment)
            named = bool(lacks) and lacks not in extras and lacks in output.partition("fix:")[2]
            right = "Traceback" not in output and (code == 0 or (code == 1 and named))
            line = shlex.join(words) + (" (lacking)" if right and code else "")
            sys.stdout.write(f"  {'ok  ' if right else 'FAIL'} {line}\n")
            sys.stdout.flush()
            faults += [] if right else [f"verl-mas {shlex.join(words)} ended with {code}:\n{output[-3000:]}"]
    return faults


def answer(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, and return its exit code and output. At the time limit, it is interrupted, as by Ctrl-C."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
    return process.returncode, output


LEAVES = """
from verl_mas.cli.completion import parsers

print(*(name for name, own in parsers() if not own.below), sep="\\n")
"""


def untried(program: Path) -> list[str]:
    """Return an error for each command of `verl-mas` that is not in `COMMANDS`."""
    names = subprocess.check_output([program.with_name("python"), "-c", LEAVES], text=True).splitlines()
    tried = [" ".join(words) for words, _ in commands()]
    lacking = [name for name in names if not any(one.startswith(name) for one in tried)]
    return [f"{name} is in no command of this script" for name in lacking]


def extras_of_pages() -> list[frozenset[str]]:
    """Return the sets of extras to install: the empty set, and the set of each documented command without `dev`.

    Engines for GPUs are removed from the sets. Each set occurs once.
    """
    found = [install.extras - OF_GPUS for install in documented()]
    return list(dict.fromkeys([frozenset[str](), *(extras for extras in found if "dev" not in extras)]))


def installed(folder: Path, wheel: Path, extras: frozenset[str]) -> Path:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "versions/constraints.txt"]
    subprocess.run([*pip, "torch", *os.environ.get("TORCH_INDEX", "").split()], check=True)
    subprocess.run([*pip, f"{wheel}[{','.join(sorted(extras))}]" if extras else wheel], check=True)
    return folder / "bin/verl-mas"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", type=Path, metavar="PROGRAM", help="an installed verl-mas")
    given = parser.parse_args().installed
    if given:
        faults = [*run(given.absolute(), frozenset()), *untried(given.absolute())]
        sys.stdout.write("\n".join([*faults, f"{len(faults)} faults\n"]))
        return bool(faults)
    with tempfile.TemporaryDirectory() as temporary:
        folder, faults = Path(temporary), list[str]()
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True)
        (wheel,) = folder.glob("*.whl")
        for extras in extras_of_pages():
            sys.stdout.write(f"extras: {', '.join(sorted(extras)) or 'none'}\n")
            program = installed(folder / "environment", wheel, extras)
            faults += [*run(program, extras), *untried(program)]
            shutil.rmtree(folder / "environment")
    sys.stdout.write("\n".join([*faults, f"{len(faults)} faults\n"]))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
