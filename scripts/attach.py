"""Attach the report of a run and the page of its sessions, as files, to the run's entry in a tracker.

    python scripts/attach.py checkpoints/my_run --wandb 2k3j4h5g --mlflow 905fd7c53db74054b0a62f77ff12fec2
    python scripts/attach.py checkpoints/my_run --swanlab a5kd3o2x --trackio

Call it after the end of the training, in the same working directory and with the same environment variables. W&B,
MLflow and SwanLab print the id of a run and show it in the run's URL; trackio needs no id, because it finds the latest
run of the name. The files stay in the folder `report` of the run. TensorBoard cannot hold files.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf

from verl_mas.cli import report, view
from verl_mas.run_folder.about import CONFIG, ENDED, attempts, read_about

FOLDER = "report"
# verl's default.
MLFLOW_URI = "sqlite:////tmp/mlruns.db"


class Attached:
    """The files to attach, and the project, name and end of their run, from run.yaml."""

    def __init__(self, run: str, sessions: str):
        about = read_about(Path(run))
        starts = attempts(about)
        if not starts:
            raise SystemExit(f"{run} has no run.yaml: give the folder of a run")
        trainer = OmegaConf.create(about[CONFIG]).trainer
        self.project, self.name = str(trainer.project_name), str(trainer.experiment_name)
        ended = starts[-1].get(ENDED)
        self.failed = not (isinstance(ended, dict) and ended.get("by") == "finished")
        self.files = Path(run).absolute() / FOLDER
        report.main([run, "--html", str(self.files / "report.html"), "--force"])
        view.main([run, "--out", str(self.files / "view.html"), "--limit", sessions, "--force"])

    def to_wandb(self, run: str) -> None:
        import wandb

        entity = os.environ.get("WANDB_ENTITY")
        resumed = wandb.init(entity=entity, project=self.project, name=self.name, id=run, resume="allow")
        artifact = wandb.Artifact(f"report-{run}", type="report")
        artifact.add_dir(str(self.files))
        resumed.log_artifact(artifact)
        # Attaching resumes the run in the tracker, so restore its final state.
        resumed.finish(exit_code=int(self.failed))

    def to_mlflow(self, run: str) -> None:
        import mlflow

        uri = os.environ.get("MLFLOW_TRACKING_URI", MLFLOW_URI)
        mlflow.MlflowClient(uri).log_artifacts(run, str(self.files), FOLDER)

    def to_swanlab(self, run: str) -> None:
        import swanlab

        where = {"mode": os.environ.get("SWANLAB_MODE", "online"), "log_dir": os.environ.get("SWANLAB_LOG_DIR")}
        resumed = swanlab.init(project=self.project, name=self.name, id=run, resume="allow", **where)
        resumed.save(str(self.files / "**"), base_path=str(self.files.parent), policy="now")
        resumed.finish(*("crashed", "see report.html") if self.failed else ("success",))

    def to_trackio(self) -> None:
        import trackio

        trackio.init(project=self.project, name=self.name, resume="must", auto_log_cpu=False, auto_log_gpu=False)
        trackio.log_artifact(str(self.files), name=f"report-{self.name}", type="report")
        trackio.finish()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run (trainer.default_local_dir)")
    parser.add_argument("--sessions", default="200", help="sessions on the page, the newest ones (200)")
    for tracker in ("wandb", "mlflow", "swanlab"):
        parser.add_argument(f"--{tracker}", metavar="ID")
    parser.add_argument("--trackio", action="store_true")
    options = parser.parse_args(argv)
    attached = Attached(options.run, options.sessions)
    if options.wandb:
        attached.to_wandb(options.wandb)
    if options.mlflow:
        attached.to_mlflow(options.mlflow)
    if options.swanlab:
        attached.to_swanlab(options.swanlab)
    if options.trackio:
        attached.to_trackio()


if __name__ == "__main__":
    main(sys.argv[1:])
