"""Selection of the endpoint's model that serves a policy."""

import pytest

from verl_mas.errors import ConfigError
from verl_mas.results.serve import endpoints
from verl_mas.results.serve.runtime import Runtime

URL = "http://10.0.0.1:8000/v1"


@pytest.mark.parametrize("most", [10, 10_000_000])
def test_a_list_of_models_without_end_is_refused(most, trickling, monkeypatch):
    monkeypatch.setattr(endpoints, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(endpoints, "MAX_LIST", most)
    with pytest.raises(ConfigError, match="more than 10 bytes" if most == 10 else "TimeoutError"):
        endpoints.remotes({"a": trickling}, {"a": None})


@pytest.fixture
def served(monkeypatch):
    """Make an endpoint with these models."""
    return lambda *names: monkeypatch.setattr(endpoints, "_listed", lambda policy, url, key: list(names))


@pytest.mark.parametrize(
    ("names", "model", "found"),
    [
        (["/teams/old/a", "Qwen/Qwen3-4B", "a"], None, "a"),
        (["/teams/new/a"], None, "/teams/new/a"),
        (["Qwen/Qwen3-4B"], "Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        (["Qwen/Qwen3-4B", "a"], "Qwen/Qwen3-4B", "a"),
    ],
)
def test_a_policy_is_served_under_its_name_a_path_that_ends_with_it_or_its_model(served, names, model, found):
    served(*names)
    assert endpoints.remotes({"a": URL}, {"a": model})["a"].model == found


def test_the_base_of_an_adapter_is_not_the_adapter(served, tmp_path):
    """`vllm serve BASE --lora-modules a=... b=...` lists the base first."""
    from saved_policies import exported_pair

    folder = exported_pair(tmp_path)
    base = str(tmp_path / "model")
    served(base, "a", "b")
    runtime = Runtime(folder, endpoints={"a": URL, "b": URL})
    assert [runtime.clients[name].model for name in ("a", "b")] == ["a", "b"]
    served(base)
    with pytest.raises(ConfigError, match="policy a under none of these names"):
        Runtime(folder, endpoints={"a": URL, "b": URL})
