"""Public sets of programming tasks. APPS, LiveCodeBench and TACO need loading scripts, so we name their files."""

from __future__ import annotations

from verl_mas.data.sources import PublicSet

APPS = ("codeparrot/apps", "21e74ddf8de1a21436da12e3e653065c5213e9d1")
CODE_CONTESTS = ("deepmind/code_contests", "802411c3010cb00d1b05bad57ca77365a3c699d6")
TACO = ("BAAI/TACO", "d593ed0a2becbbc952230bb89be09189bf1056dc")
LIVECODEBENCH = ("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505")
DEEPCODER = ("agentica-org/DeepCoder-Preview-Dataset", "177913a7bd43791646ef6a43645caa3c871ab3db")
RELEASES = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7)))
TRAIN_SETS = (
    PublicSet("apps", APPS[0], "train", APPS[1], 5_000, ("train.jsonl",)),
    PublicSet("code_contests", CODE_CONTESTS[0], "train", CODE_CONTESTS[1], 13_328),
    PublicSet("taco", TACO[0], "train", TACO[1], 25_443, ("train/*.arrow",)),
    PublicSet("deepcoder", DEEPCODER[0], "train", DEEPCODER[1], 16_252, ("primeintellect/train*.parquet",)),
)
TEST_SETS = (
    PublicSet("livecodebench_v6", LIVECODEBENCH[0], "test", LIVECODEBENCH[1], 1_055, RELEASES),
    PublicSet("livecodebench_v5", LIVECODEBENCH[0], "test", LIVECODEBENCH[1], 880, RELEASES[:5]),
    PublicSet("apps_test", APPS[0], "test", APPS[1], 5_000, ("test.jsonl",)),
    PublicSet("code_contests_test", CODE_CONTESTS[0], "test", CODE_CONTESTS[1], 165),
    PublicSet("taco_test", TACO[0], "test", TACO[1], 1_000, ("test/*.arrow",)),
)
