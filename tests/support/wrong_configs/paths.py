"""Models, data, functions and output folders that are not there, are of another kind or cannot be written."""

from __future__ import annotations

from wrong_configs.case import wrong
from wrong_configs.files import text

DATA, MODEL, REWARD = "data.train_files", "actor_rollout_ref.model.path", "reward.custom_reward_function"
OUT, RECORDS = "trainer.default_local_dir", "mas.trajectories.dir"
SCORE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
# A value that no command line can carry.
NULL_BYTE = '# @package _global_\nmas: {trajectories: {dir: "a\\0b"}}\n'

CASES = (
    wrong(f"{DATA}=/nowhere/train.parquet", "data.train_files=/nowhere/train.parquet does not exist"),
    wrong("data.val_files=/nowhere/test.parquet", "data.val_files=/nowhere/test.parquet does not exist"),
    wrong(f"{DATA}=[]", "verl reads at least one file"),
    wrong(f"{DATA}=null", "it is a path or a list of paths"),
    wrong("data.val_files=null", "it is a path or a list of paths"),
    wrong(f"{DATA}=", "it is a path or a list of paths"),
    wrong(f"{DATA}=[{{task}}/train.parquet,/nowhere/b.parquet]", "/nowhere/b.parquet does not exist"),
    wrong(f"{DATA}={{task}}", "verl reads files that end in .parquet, .json, .jsonl"),
    wrong(f"{DATA}={{task}}/train.csv", "convert the file"),
    wrong(f"{DATA}=runs/math/train.parquet", "verl-mas data math --out runs/math"),
    wrong(f"{DATA}=hdfs://cluster/train.parquet", "not checked", warned=True),
    wrong(f"{MODEL}=/nowhere/model", "set the model path to an existing folder or to owner/name"),
    wrong(f"{MODEL}=./nowhere", "owner/name"),
    wrong(f"{MODEL}=nowhere", "owner/name"),
    wrong(f"{MODEL}=", "actor_rollout_ref.model.path="),
    wrong(f"{MODEL}=null", "actor_rollout_ref.model.path=None"),
    wrong(f"{MODEL}=5", "actor_rollout_ref.model.path=5"),
    wrong(f"{MODEL}={{task}}/train.parquet", "it is a folder in Hugging Face format"),
    wrong(f"{MODEL}=runs/arithmetic/model", "verl-mas data arithmetic --out runs/arithmetic"),
    wrong("actor_rollout_ref.model.lora_adapter_path=/nowhere", "adapter_config.json"),
    wrong(f"{REWARD}.path=/nowhere/reward.py", "reward.custom_reward_function.path=/nowhere/reward.py does not exist"),
    wrong(f"{REWARD}.path=pkg://no_such_package.reward", "does not exist"),
    wrong(
        f"{REWARD}.path={{folder}}/reward.py {REWARD}.name=compute_scor",
        "did you mean 'compute_score'",
        prepare=text("reward.py", SCORE),
    ),
    wrong(
        f"{REWARD}.path={{folder}}/reward.py {REWARD}.name=null",
        "the name of the reward function",
        prepare=text("reward.py", SCORE),
    ),
    wrong(f"{REWARD}.path={{folder}}/reward.py", "reward.py, line 1", prepare=text("reward.py", "def broken(:\n")),
    wrong(
        f"{REWARD}.path={{folder}}/reward.py {REWARD}.name=compute_score",
        "does not take data_source, ground_truth, extra_info",
        prepare=text("reward.py", "def compute_score(solution_str):\n    return 1.0\n"),
    ),
    wrong("custom_reward_function.path=/nowhere/reward.py custom_reward_function.name=f", "does not exist"),
    wrong("data.custom_cls.path=/nowhere/dataset.py data.custom_cls.name=Mine", "the dataset class"),
    wrong(f"{OUT}=/proc/nowhere", "cannot be written: /proc"),
    wrong(f"{OUT}={{folder}}/file", "is a file", prepare=text("file", "")),
    wrong(f"{OUT}={{folder}}/file/below", "is a file", prepare=text("file", "")),
    wrong(f"{OUT}=hdfs://cluster/run", "a folder of this machine's file system"),
    wrong(f"{OUT}=", "it is the path of a folder"),
    wrong(f"{OUT}=null", "it is the path of a folder"),
    wrong(f"{RECORDS}=/proc/nowhere", "cannot be written: /proc"),
    wrong(f"{RECORDS}={{folder}}/file", "is a file", prepare=text("file", "")),
    wrong(f"{RECORDS}=", "mas.trajectories.dir=''"),
    wrong("trainer.validation_data_dir=/proc/nowhere", "cannot be written"),
    wrong("--config-dir {folder} +records=here", "it has no null byte", prepare=text("records/here.yaml", NULL_BYTE)),
)
