import pytest
from engine_sources import forget
from omegaconf import OmegaConf
from verl_contract import sources

from verl_mas.engines.kinds import sglang, vllm
from verl_mas.engines.sampling import engine_errors, installed_names, mistyped, names_of, sampling_errors

SOURCES = {
    "a dataclass": "class SamplingParams:\n    temperature: float = 1.0\n    max_new_tokens: int\n    _own: int = 0\n",
    "a constructor": "class SamplingParams:\n    def __init__(self, max_new_tokens=1, *, temperature=1.0): ...\n",
}


@pytest.fixture(autouse=True)
def forgotten():
    forget()
    yield
    forget()


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_names_are_those_of_the_installed_release(tmp_path, monkeypatch, source):
    package = tmp_path / "an_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "params.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "PACKAGES", ("an_engine",))
    forget()
    assert installed_names("an_engine.params", frozenset()) == {"temperature", "max_tokens"}


def test_an_engine_that_is_not_installed_has_the_names_of_the_release_that_verl_requires():
    assert installed_names("vllm.no_such_module", frozenset({"top_p"})) == {"top_p"}
    for kind in (vllm, sglang):
        assert {"temperature", "max_tokens", "top_p", "stop"} <= kind.SAMPLING


def test_each_engine_has_its_own_names():
    assert [error.value for error in sampling_errors({"min_p": 0.1}, "vllm", "act")] == []
    (error,) = sampling_errors({"min_p": 0.1}, "transformers", "act")
    assert "rollout.name=transformers" in error.rule
    assert [error.fix[:15] for error in sampling_errors({"seed": 3}, "sglang", "act")] == ["known: custom_p"]


def test_where_the_engine_is_not_known_any_name_of_any_engine_is_accepted():
    assert {"min_p", "thinking_token_budget", "stop_regex", "reasoning_effort"} <= (names_of(None) or set())
    (error,) = sampling_errors({"temprature": 0.3, "min_tokens": 4}, None, "act")
    assert "did you mean 'temperature'?" in error.fix


def test_the_names_of_an_engine_that_only_verl_knows_are_not_checked():
    assert list(sampling_errors({"anything": 1}, "trtllm", "act")) == []


OUT_OF_RANGE = [
    {"temperature": 101},
    {"repetition_penalty": 1e-40},
    {"top_k": 10**10},
    {"stop": ""},
    {"stop": "x" * 1001},
    {"stop": ["x"] * 65},
    {"stop_token_ids": [2**31]},
]


@pytest.mark.parametrize("given", [*OUT_OF_RANGE, {"temperature": -1}, {"n": 3}, {"logprobs": 5}, {"stream": True}])
def test_a_value_out_of_range_and_what_every_request_has_are_refused_for_every_engine(given):
    for engine in ("vllm", "sglang", "transformers", "trtllm", None):
        assert len(list(sampling_errors(given, engine, "act"))) == 1


def test_a_setting_of_an_endpoint_is_mistyped_only_if_it_is_close_to_a_known_one():
    assert mistyped("reasoning_efort") == "reasoning_effort"
    assert mistyped("reasoning_effort") == mistyped("num_ctx") == mistyped("provider") == ""


@pytest.mark.parametrize(
    ("options", "version", "environment", "fix"),
    [
        ({}, "0.31.0", "", "reasoning_parser"),
        ({"reasoning_parser": "qwen3"}, "0.24.0", "", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"reasoning_parser": "qwen3"}, "0.24.0", "0", None),
        ({"reasoning_parser": "qwen3"}, "0.28.0", "", None),
    ],
)
def test_a_budget_for_thinking_needs_an_engine_that_takes_it(monkeypatch, options, version, environment, fix):
    monkeypatch.setattr(vllm, "installed_version", lambda package: version)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", environment)
    monkeypatch.setattr(vllm.platform, "selected", lambda: False)
    rollout = OmegaConf.create({"name": "vllm", "engine_kwargs": {"vllm": options}})
    found = [error.fix for error in engine_errors({"thinking_token_budget": 100}, rollout, "act")]
    assert found == [] if fix is None else [fix in text for text in found] == [True]
    assert list(engine_errors({"temperature": 1.0}, rollout, "act")) == []
