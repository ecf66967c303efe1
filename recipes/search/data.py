"""The data set `search`: NQ and HotpotQA for training, and seven test sets, which `data_source` distinguishes."""

from __future__ import annotations

from verl_mas.cli.data._public import Questions
from verl_mas.config.hydra.recipe.math.data import no_truth, question_of, truth_of
from verl_mas.data.dataset import DATA_SETS
from verl_mas.data.items import Item
from verl_mas.data.sources import PublicSet
from verl_mas.environment.grading.qa import golden_answers
from verl_mas.environment.retrieval.files import Row
from verl_mas.errors import DataError

REPOSITORY, REVISION = "PeterJinGo/nq_hotpotqa_train", "b7d80abfee334a7a91cb377544f09180d58b34f6"


def search_item(row: Row, number: int, source: str) -> Item:
    try:
        truth = golden_answers(truth_of(row))
    except DataError as error:
        raise no_truth(row, number, source) from error
    return Item(question_of(row, number, source), truth, row.get("data_source") or source)


@DATA_SETS.register("search")
class Search(Questions):
    """The search team's public sets, or files of your own."""

    train_sets = (PublicSet("nq_hotpotqa", REPOSITORY, "train", REVISION, 169_615),)
    test_sets = (PublicSet("search_r1_test", REPOSITORY, "test", REVISION, 51_713),)
    make = staticmethod(search_item)
    otherwise = 30
