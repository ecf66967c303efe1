"""`team.yaml` files, made from composed configurations."""

import pytest
import yaml

from verl_mas.config.compose import compose
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, TeamPolicy, describe, read_team

TEAM = ["+mas=solver_verifier", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.model.path=Some/Model"]


def described(*arguments: str) -> TeamFile:
    config = compose([*TEAM[any(one.startswith("+mas=") for one in arguments) :], *arguments])
    return describe(Run.of(config))


@pytest.fixture(scope="module")
def adapters() -> TeamFile:
    return described(
        "mas.policies={solver: {adapter_of: main, overrides: {model: {lora_rank: 4}, rollout: {temperature: 0.7}}}, "
        "judge: {remote: {base_url: 'http://host/v1', model: m, api_key_env: THE_KEY}}}",
        "+mas.agents.solver={policy: solver, sampling: {extra: {min_tokens: 3}, max_tokens: 9999999, stop: [x]}, "
        "chat_template_kwargs: {enable_thinking: false}, validation_sampling: {top_k: 5}, max_prompt_length: 77}",
        "+mas.agents.verifier={policy: judge, sampling: {temperature: 0.1}}",
        "actor_rollout_ref.rollout.val_kwargs.temperature=0.3",
        "++data.apply_chat_template_kwargs={add_date: true, enable_thinking: true}",
        "++mas.workflow.args.max_rounds=3",
        "+mas.mcp={files: {url: 'http://user:hidden@host:3/mcp?token=hidden'}, "
        "program: {command: [serve], env: {TOKEN: hidden, PORT: '1'}, pass_env: [OTHER]}}",
    )


def test_what_is_written_is_read_again(adapters, tmp_path):
    adapters.write(tmp_path)
    assert read_team(tmp_path) == adapters
    assert "max_tool_rounds" not in (tmp_path / TEAM_FILE).read_text(), "defaults are left out"
    assert adapters.workflow.name == "solver_verifier" and adapters.workflow.args["max_rounds"] == 3


def test_a_policy_has_its_own_weights_its_model_or_its_endpoint(adapters):
    solver, main, judge = (adapters.policies[name] for name in ("solver", "main", "judge"))
    lengths = {"prompt_length": 512, "response_length": 512}
    assert solver == TeamPolicy(model="Some/Model", folder="solver", adapter_of="main", dtype="bfloat16", **lengths)
    assert main == TeamPolicy(model="Some/Model", dtype="bfloat16", **lengths)
    assert judge.remote.model == "m" and judge.model is None


def test_the_sampling_of_an_agent_is_complete_in_training_and_in_validation(adapters):
    solver, verifier = adapters.agents["solver"], adapters.agents["verifier"]
    both = {"top_p": 1.0, "stop": ["x"], "max_tokens": 512, "extra": {"min_tokens": 3}}
    assert solver.sampling == {"temperature": 0.7, "top_k": -1, **both}
    assert solver.validation_sampling == {"temperature": 0.3, "top_k": 5, **both}
    assert verifier.sampling == {"temperature": 0.1}, "an endpoint has defaults of its own"
    assert solver.chat_template_kwargs == {"add_date": True, "enable_thinking": False}
    assert solver.max_prompt_length == 77


def test_how_answers_are_scored_is_written(tmp_path):
    (tmp_path / "mine.py").touch()
    mine = f"{tmp_path}/mine.py"
    expected = {"reward.custom_reward_function.path": mine, "reward.custom_reward_function.name": "score"}
    section = "reward.custom_reward_function"
    found = described(f"{section}.path={mine}", f"{section}.name=score", f"+{section}.reward_kwargs={{scale: 2}}").verl
    assert expected.items() <= found.items()
    assert found[f"{section}.reward_kwargs"] == {"scale": 2}
    assert found["actor_rollout_ref.rollout.multi_turn.format"] == "hermes"


def test_no_secret_is_written(adapters):
    assert "hidden" not in adapters.text()
    assert adapters.mcp["files"].url == "http://host:3/mcp"
    assert adapters.mcp["program"].pass_env == ["OTHER", "TOKEN", "PORT"]
    assert adapters.policies["judge"].remote.api_key_env == "THE_KEY"
    search = described(
        "+mas=search_team", "++mas.workflow.args.retriever='http://me:hidden@host/retrieve'"
    ).workflow.args
    assert search["retriever"] == "http://host/retrieve"


def test_files_have_their_whole_path_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("base", "module"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine.py").touch()
    found = described("actor_rollout_ref.model.path=base", "mas.plugins=[mine.py, module]")
    assert found.policies["main"].model == str(tmp_path / "base")
    assert found.plugins == [str(tmp_path / "mine.py"), "module"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "format 2"),
        ({"workflow": {"name": ""}}, "workflow.name"),
        ({"agents": {}}, "agents is a mapping, not empty"),
        ({"policies": {"../x": {"folder": "../x"}}}, "policy name '../x'"),
        ({"policies": {"queue": {}}}, "policy name 'queue'"),
        ({"policies": {"x": {"folder": "../x"}}}, r"folder=\.\./x"),
        ({"policies": {"x": {"snapshot_of": "../y"}}}, r"policies\.x\.snapshot_of=\.\./y"),
        ({"policies": {"x": {"adapter_of": "y"}}}, r"policies\.x\.adapter_of=y"),
        ({"policies": {"x": {}}}, r"agents\.solver\.policy=solver"),
        ({"polices": {}}, "did you mean 'policies'"),
    ],
)
def test_a_file_of_another_kind_is_refused(adapters, tmp_path, change, says):
    content = {**yaml.safe_load(adapters.text()), **change}
    (tmp_path / TEAM_FILE).write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=says):
        read_team(tmp_path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"a: [", b"[]"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / TEAM_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=TEAM_FILE):
        read_team(tmp_path)


def test_a_program_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.py").touch()
    team = described("+mas=program", "++mas.workflow.args={function: 'team.py:team', python: python3}")
    assert team.workflow.args == {"function": f"{tmp_path}/team.py:team", "python": "python3"}
