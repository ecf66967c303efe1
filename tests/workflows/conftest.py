"""Fixtures of the tests of search teams."""

import pytest


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an index of three passages."""
    pytest.importorskip("tantivy")
    from verl_mas.environment.retrieval.corpus import Passage
    from verl_mas.environment.retrieval.index import build

    texts = {"Brel": "Brel was founded by Aiko.", "Aiko": "Aiko was born in Tazor.", "Tazor": "Tazor is a city."}
    folder = tmp_path_factory.mktemp("index") / "i"
    build([Passage(title.lower(), text, title) for title, text in texts.items()], folder)
    return str(folder)
