"""The job file of scripts/clusters trains two policies on Slurm; skipped where Slurm is not installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm.sh"
MISSING = [program for program in ("munged", "slurmctld", "slurmd", "unshare") if shutil.which(program) is None]


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.skipif(bool(MISSING), reason=f"apt-get install slurm-wlm munge: no {', '.join(MISSING)}")
@pytest.mark.skipif(os.geteuid() != 0, reason="scripts/slurm.sh mounts a /tmp/ray of its own, as root")
def test_a_step_of_slurm_trains_two_policies_and_one_without_gpus_is_refused(tmp_path):
    done = subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert (tmp_path / "run" / "global_step_2" / "b").is_dir()
    log = (tmp_path / "probes.log").read_text()
    assert "cores of this step: 2" in log and "error: this Slurm step has no GPU" in log
