"""A key is sent to its endpoint, and appears nowhere else."""

import json
import logging
import sys
import traceback

import pytest

import verl_mas
from verl_mas.config.schema import FaultSpec, TrajectorySpec
from verl_mas.errors import ConfigError, ConfigWarning, SessionFault
from verl_mas.gateway.endpoints.endpoint import check_endpoint
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.workflow.session import SessionResult

KEY = 'sk-"proj"/1234567890abcdef'
FORMS = (KEY, json.dumps(KEY)[1:-1], "sk-%22proj%22%2F1234567890abcdef")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEAM_KEY", KEY)


def client(url, **settings):
    return verl_mas.OpenAIClient(url, "m", api_key_env="TEAM_KEY", **settings)


@pytest.mark.parametrize("body", [*(f"bad key {form}" for form in FORMS), "x" * 490 + KEY])
def test_an_endpoint_that_repeats_the_key_does_not_bring_it_into_faults_logs_or_records(serve, body, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    endpoint = client(serve(lambda _: (401, body)).url)
    with pytest.raises(SessionFault, match="HTTP 401") as raised:
        verl_mas.run("single", "q", endpoint, faults=FaultSpec(retries=0))
    fault = raised.value
    failed = verl_mas.run("single", "q", verl_mas.ScriptedLLM("4"))
    writer = TrajectoryWriter(TrajectorySpec(), tmp_path, "1")
    writer.write(SessionResult(failed, [fault], failed=True), "dropped")
    records = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    written = [repr(fault), *traceback.format_exception(fault), caplog.text, records, str(vars(endpoint))]
    assert "HTTP 401" in records
    assert not [text for text in written if any(form[:12] in text for form in FORMS)]


CALLS = ["press"], [{"id": "1"}], [{"function": None}], "press", 5
MESSAGES = "4", {"content": 42}, {"content": [42]}, *({"content": None, "tool_calls": calls} for calls in CALLS)
COMPLETIONS = [json.dumps({"choices": [{"message": message}]}) for message in MESSAGES]


@pytest.mark.parametrize("body", ["<html>", '{"error": "no credit"}', '{"choices": []}', "[]", "1", KEY, *COMPLETIONS])
def test_a_response_that_is_no_completion_is_quoted_in_the_fault(serve, body):
    with pytest.raises(SessionFault) as raised:
        verl_mas.run("single", "q", client(serve(lambda _: (200, body)).url), faults=FaultSpec(retries=0))
    assert f"is not a chat completion: {'***' if body == KEY else body}" in raised.value.cause


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("http_proxy", "socks5://name:pw@host:1", "pip install socksio"),
        ("https_proxy", "ftp://name:pw@host", "export http_proxy="),
        ("HTTP_PROXY", "http://name:pw@host:99999", "export http_proxy="),
        ("no_proxy", "localhost,[::1]", "a no_proxy without brackets"),
    ],
)
def test_a_proxy_that_httpx_cannot_use_is_refused_before_a_request_and_its_password_is_not_repeated(
    name, value, fix, monkeypatch
):
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, value)
    (error,) = check_endpoint("http://host:8000/v1", None, "")
    assert fix in error.fix and "pw" not in str(error)
    monkeypatch.setenv(name, "10.0.0.1" if name == "no_proxy" else "http://name:pw@host:1")
    assert not list(check_endpoint("http://host:8000/v1", None, ""))


def test_a_key_that_no_header_can_hold_is_hidden_in_the_cause(monkeypatch, serve):
    endpoint = client(serve(lambda body: "4").url)
    monkeypatch.setenv("TEAM_KEY", "sk-1234\r")
    with pytest.raises(SessionFault, match=r"\*\*\*") as raised:
        verl_mas.run("single", "q", endpoint, faults=FaultSpec(retries=0))
    assert "sk-1234" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("url", "variable", "value", "says"),
    [
        ("http://host/v1?api-key=SECRET", None, None, "not repeated"),
        ("http://me:SECRET@host/v1", None, None, "user name or password"),
        ("http://me:SECRET@host:99999/v1", None, None, "not repeated"),
        ("http://host/v1/chat/completions", None, None, "set base_url=http://host/v1$"),
        ("http://host", "sk-proj-SECRET", None, "not the name of an environment variable"),
        ("http://host", "sk_proj_SECRET", None, "not set"),
        ("http://host", "TORN", "SECRET\n", "character 7 of 7"),
        ("http://host", "SPACED", "Bearer SECRET", "character 7 of 13"),
    ],
)
def test_an_address_or_a_key_that_cannot_work_is_refused_without_its_secret(monkeypatch, url, variable, value, says):
    if value is not None:
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=says) as raised:
        verl_mas.OpenAIClient(url, "m", api_key_env=variable)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("hosts", "warned"),
    [
        ("http://api.example.com http://8.8.8.8", True),
        ("https://api.example.com http://127.0.0.1:80 http://[::1]:80 http://10.0.0.7:80 http://node7:80", False),
    ],
)
def test_a_key_over_an_open_connection_into_the_internet_is_warned_of(hosts, warned):
    for host in hosts.split():
        problems = list(check_endpoint(f"{host}/v1", "TEAM_KEY", ""))
        assert [type(problem) for problem in problems] == [ConfigWarning] * warned, host
