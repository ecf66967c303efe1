"""The files of scripts/clusters: they install as the quickstart says, and their commands fit the nodes they ask for."""

import re
import subprocess

import pytest
import yaml
from page_blocks import ROOT, fenced
from recipe_configs import accepted

from verl_mas.checks import machine

FILES = ROOT / "scripts" / "clusters"
NODES = {
    "slurm.sbatch": lambda text: int(re.search(r"^#SBATCH --nodes=(\d+)", text, re.MULTILINE)[1]),
    "rayjob.yaml": lambda text: 1 + yaml.safe_load(text)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"],
    "skypilot.yaml": lambda text: yaml.safe_load(text)["num_nodes"],
}
GPUS = {
    "slurm.sbatch": r"--gpus-per-node=(\d+)",
    "rayjob.yaml": r"limits: .*gpu: (\d+)",
    "skypilot.yaml": r"accelerators: \w+:(\d+)",
}


@pytest.mark.parametrize("name", NODES)
def test_the_command_of_a_file_is_accepted_with_the_nodes_and_gpus_that_it_asks_for(name, monkeypatch):
    monkeypatch.setattr(machine, "available", lambda config: None)
    text = (FILES / name).read_text()
    command = re.search(
        r"main_ppo (\+recipe.*?)(?:&&|\n\s*(?:fi|runtimeEnvYAML))", text.replace("\\\n", " "), re.DOTALL
    )
    trainer = accepted(command[1].replace('"', "")).config.trainer
    assert trainer.nnodes == NODES[name](text) and trainer.n_gpus_per_node == int(re.search(GPUS[name], text)[1])


@pytest.mark.parametrize("name", ["Dockerfile", "skypilot.yaml"])
def test_a_file_installs_as_the_quickstart_does(name):
    (first, *_) = [
        block for block in fenced(ROOT / "docs/start/gpu-quickstart.md") if "constraints-gpu.txt" in block.text
    ]
    text = (FILES / name).read_text().replace(" --no-cache-dir", "")
    lines = re.sub(r"\\\n\s*", "", first.text).splitlines()
    installs = [set(line.split()) for line in lines if line.startswith("pip install")]
    given = [set(line.removeprefix("RUN").split()) for line in text.splitlines()]
    assert installs and all(line in given for line in installs)


def test_the_job_of_slurm_is_bash():
    subprocess.run(["bash", "-n", FILES / "slurm.sbatch"], check=True)
