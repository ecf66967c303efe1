from verl_mas.run_folder.secrets import HIDDEN, clean, clean_command, is_secret, without_secrets

SECRET = ("api_key", "HF_TOKEN", "OPENAI_API_KEY", "mas.policies.a.remote.extra.api-key", "password", "--token")
OTHER = ("data.prompt_key", "max_tokens", "api_key_env", "tokenizer", "key", "token_level", "monkey")


def test_a_setting_that_is_named_for_a_secret_is_one_and_others_are_none():
    assert [name for name in (*SECRET, *OTHER) if is_secret(name)] == [*SECRET]


def test_settings_keep_everything_but_secrets():
    def settings(secret: str, address: str) -> dict[str, object]:
        command = ["run", "--token", secret, "--port", "3", f"password={secret}"]
        return {
            "data": {"prompt_key": "prompt", "max_tokens": 7, "files": ["a", "b"], "rate": 0.5, "none": None},
            "remote": {"api_key": secret, "api_key_env": "OPENAI_API_KEY", "base_url": address},
            "mcp": {"search": {"env": {"ANY": secret}, "command": command}},
            "password": "",
        }

    given = settings("x", "https://me:pw@host:1/v1?key=x")
    assert without_secrets(given) == settings(HIDDEN, "https://host:1/v1")


def test_a_command_keeps_everything_but_secrets(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "as-in-the-shell")
    plain = ["python", "-m", "verl.trainer.main_ppo", "+mas=team", "data.prompt_key=prompt"]
    given = ["++mas.mcp.s.env.ANY=abc", "mas.x=as-in-the-shell", "mas.url=http://a:b@c/d"]
    hidden = [f"++mas.mcp.s.env.ANY={HIDDEN}", f"mas.x={HIDDEN}", "mas.url=http://c/d"]
    assert clean_command([*plain, *given]) == [*plain, *hidden]


def test_a_text_that_has_the_form_of_a_key_is_hidden_and_other_texts_and_addresses_stay():
    keys = ("sk-abcdefghijklmnop1234", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrstuv", "AKIAABCDEFGHIJKLMNOP")
    assert [clean(f"it is {key}, here") for key in keys] == [f"it is {HIDDEN}, here"] * 4
    others = ("task-sk-1", "hdfs://host/path", "sqlite:////tmp/x.db", "http://[::1")
    assert tuple(map(clean, others)) == others
