"""The data set `search`: NQ and HotpotQA for training, and seven test sets, which `data_source` distinguishes."""

from __future__ import annotations

from verl_mas.cli.data._public import Questions
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import search_item
from verl_mas.data.sources import PublicSet

REPOSITORY, REVISION = "PeterJinGo/nq_hotpotqa_train", "b7d80abfee334a7a91cb377544f09180d58b34f6"


@DATA_SETS.register("search")
class Search(Questions):
    """The search team's public sets, or files of your own."""

    train_sets = (PublicSet("nq_hotpotqa", REPOSITORY, "train", REVISION, 169_615),)
    test_sets = (PublicSet("search_r1_test", REPOSITORY, "test", REVISION, 51_713),)
    make = staticmethod(search_item)
    otherwise = 30
