import pytest

from verl_mas.run_folder.secrets import HIDDEN, clean, clean_command, is_secret, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "mas.policies.a.remote.extra.api-key",
        "password",
        "--token",
        "secret_key",
    ],
)
def test_a_setting_that_is_named_for_a_secret_is_one(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["data.prompt_key", "reward_fn_key", "max_tokens", "api_key_env", "tokenizer", "key", "token_level", "monkey"],
)
def test_other_settings_are_none(name):
    assert not is_secret(name)


def test_settings_keep_everything_but_secrets():
    settings = {
        "data": {"prompt_key": "prompt", "max_tokens": 7, "files": ["a", "b"], "rate": 0.5, "none": None},
        "remote": {"api_key": "x", "api_key_env": "OPENAI_API_KEY", "base_url": "https://me:pw@host:1/v1?key=x"},
        "mcp": {"search": {"env": {"ANY": "thing"}, "command": ["run", "--token", "abc", "--port", "3", "password=x"]}},
        "password": "",
    }
    assert without_secrets(settings) == {
        "data": {"prompt_key": "prompt", "max_tokens": 7, "files": ["a", "b"], "rate": 0.5, "none": None},
        "remote": {"api_key": HIDDEN, "api_key_env": "OPENAI_API_KEY", "base_url": "https://host:1/v1"},
        "mcp": {
            "search": {
                "env": {"ANY": HIDDEN},
                "command": ["run", "--token", HIDDEN, "--port", "3", f"password={HIDDEN}"],
            }
        },
        "password": "",
    }


def test_a_command_keeps_everything_but_secrets(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "as-in-the-shell")
    given = [
        *("python", "-m", "verl.trainer.main_ppo", "+mas=team", "data.prompt_key=prompt"),
        *("++mas.mcp.s.env.ANY=abc", "mas.x=as-in-the-shell", "mas.url=http://a:b@c/d"),
    ]
    assert clean_command(given) == [
        *given[:5],
        f"++mas.mcp.s.env.ANY={HIDDEN}",
        f"mas.x={HIDDEN}",
        "mas.url=http://c/d",
    ]


@pytest.mark.parametrize(
    "secret",
    ["sk-abcdefghijklmnop1234", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrstuv", "AKIAABCDEFGHIJKLMNOP"],
)
def test_a_text_that_has_the_form_of_a_key_is_hidden(secret):
    assert clean(f"it is {secret}, here") == f"it is {HIDDEN}, here"


def test_other_texts_and_addresses_stay():
    for text in (
        "task-sk-1",
        "hdfs://host/path",
        "sqlite:////tmp/x.db",
        "pkg://verl_mas.testing.letters",
        "http://[::1",
    ):
        assert clean(text) == text
