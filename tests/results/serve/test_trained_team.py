"""An exported team in Python, behind a server and in an evaluation. Its two policies are adapters on one base."""

import asyncio
import json
import shutil
import socket
from pathlib import Path

import httpx
import pytest
import yaml
from commands import output_of
from ray_start import free_port
from saved_policies import exported_pair

import verl_mas
from verl_mas import cli
from verl_mas.errors import ConfigError, EngineLost, SessionFault
from verl_mas.gateway.streaming import ON_TEXT
from verl_mas.results.serve.app import TeamServer
from verl_mas.results.serve.endpoints import EngineSettings
from verl_mas.results.serve.runtime import Runtime
from verl_mas.workflow import Generation

ENGINE, THREADS = {"threads": 1}, ["--engine", "threads=1"]
ASK = {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return exported_pair(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def team(folder):
    with verl_mas.load(folder, engine=ENGINE) as loaded:
        yield loaded


def test_a_team_answers_a_question_without_a_ground_truth_and_its_text_is_reported_as_it_comes(team):
    events = []
    session = team.run("What is 2 + 2?", listener=events.append)
    assert [reply.agent for reply in session.replies] == ["solver", "verifier", "solver"]
    assert session.answer == session.replies[-1].text and session.team_reward is None
    for number, reply in enumerate(session.replies, 1):
        assert "".join(event.text for event in events if event.act == number) == reply.text
    assert sum(event.last for event in events) == 3
    task = verl_mas.Task([{"role": "user", "content": "2 + 2?"}], ground_truth="4")
    assert team.run(task).team_reward == 0.0, "with a ground truth a session is scored"
    with pytest.raises(SessionFault, match="does not fit"):
        team.run("x" * 600)

    async def blocking():
        team.run("q")

    with pytest.raises(verl_mas.WorkflowError, match=r"await team\.arun"):
        asyncio.run(blocking())


async def test_two_adapters_served_from_one_base_answer_as_each_alone(folder, team):
    """Compare their replies in one batch with those in an engine of their own."""
    servers = {client.client.server for client in team.runtime.clients.values()}
    assert len(servers) == 1 and len(next(iter(servers)).batcher.adapters.names) == 2

    async def answers(*models):
        """Ask at the same time, so that rows of different adapters are in one batch."""
        bodies = [{"model": f"team/{model}", "temperature": 0, "max_tokens": 12, **ASK} for model in models]
        found = await replies(Runtime(folder, EngineSettings(threads=1)), *bodies)
        return [reply.json()["choices"][0]["message"]["content"] for reply in found]

    alone = [*await answers("a"), *await answers("b")]
    assert await answers(*["a", "b"] * 3) == alone * 3 and alone[0] != alone[1]


def test_many_sessions_come_in_order_or_as_they_finish_and_a_failure_is_a_result(team):
    too_long = "x" * 600
    found = list(team.run_many(["1", too_long, "3"], concurrency=2))
    assert [result.failed for result in found] == [False, True, False]
    assert [result.session.task.question for result in found] == ["1", too_long, "3"]

    async def collected():
        return [result async for result in team.arun_many(iter("abcd"), concurrency=4, ordered=False)]

    assert sorted(result.session.task.question for result in asyncio.run(collected())) == list("abcd")
    # The end of an iteration ends its sessions.
    sessions = team.run_many((str(number) for number in range(10**9)), concurrency=2)
    assert not next(sessions).failed
    sessions.close()


def test_many_tasks_run_without_an_export(serve):
    client = verl_mas.OpenAIClient(serve(lambda body: body["messages"][-1]["content"].upper()).url, "m")
    found = verl_mas.run_many("single", ["a", "b", "c"], client, concurrency=2)
    assert [result.session.answer for result in found] == ["A", "B", "C"]
    with pytest.raises(verl_mas.WorkflowError, match="concurrency=0"):
        list(verl_mas.run_many("single", ["a"], client, concurrency=0))


def test_an_export_without_all_policies_or_agents_is_refused(folder, tmp_path):
    (tmp_path / "team.yaml").write_text((folder / "team.yaml").read_text())
    with pytest.raises(ConfigError, match=r"(?s)/a is not there.*/b is not there"):
        verl_mas.load(tmp_path)
    for name in "ab":
        shutil.copytree(folder / name, tmp_path / name)
    file = next((tmp_path / "a").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ConfigError, match=f"{file.name} is not whole"):
        verl_mas.load(tmp_path)
    with pytest.raises(ConfigError, match=r"has no team\.yaml"):
        verl_mas.load(tmp_path / "..")
    text = yaml.safe_load((folder / "team.yaml").read_text())
    del text["agents"]["verifier"]
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(text))
    with pytest.raises(ConfigError, match="has no agent verifier"):
        verl_mas.load(tmp_path)


def test_a_team_of_others_that_would_run_something_is_refused_until_it_is_trusted(tmp_path):
    made = tmp_path / "made"
    team = {"format": 1, "workflow": {"name": "single"}, "agents": {"solver": {}}}
    team |= {"policies": {"main": {"folder": "main"}}, "mcp": {"x": {"command": ["touch", str(made)]}}}
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(team))
    with pytest.raises(ConfigError, match=r"mcp\.x\.command: touch (.|\n)*--trust-remote-code"):
        verl_mas.load(tmp_path)
    with pytest.raises(ConfigError, match="main is not there"):
        verl_mas.load(tmp_path, trust_remote_code=True)
    assert not made.exists()


def test_an_endpoint_that_is_down_or_serves_something_else_is_refused(folder, serve):
    url, without_models = f"http://127.0.0.1:{free_port()}", serve(lambda body: "yes").url
    for policy, endpoint, message in (
        ("a", url, f"policy a at {url}/v1: ConnectError"),
        ("a", without_models, r"(?s)/models with HTTP 501.*a=\{base_url: .*, model: NAME\}"),
        ("base", url, "an endpoint for policy base"),
    ):
        with pytest.raises(ConfigError, match=message):
            verl_mas.load(folder, endpoints={policy: endpoint})


async def post(server, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    async with client_of(server) as client:
        return await client.post("/v1/chat/completions", content=content, headers=headers)


def client_of(server):
    return httpx.AsyncClient(transport=httpx.ASGITransport(server.app()), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def runtime(folder):
    return Runtime(folder, EngineSettings(threads=1))


LOOP = asyncio.new_event_loop()  # of all tests here, because a runtime needs one loop for all its sessions


async def replies(runtime, *bodies):
    """Send the requests at the same time."""
    server = TeamServer(runtime, name="team")
    return await asyncio.gather(*[post(server, body) for body in bodies])


async def test_the_model_is_the_team_and_usage_is_of_all_acts(runtime):
    body = {"model": "team", "temperature": 0.5, "verl_mas": {"transcript": True}, **ASK}
    surrogate = b'{"model": "team", "messages": [{"role": "user", "content": "\\ud800"}]}'
    reply, text = await replies(runtime, body, surrogate)
    assert text.status_code == 200, "a lone surrogate in a question is text"
    found = reply.json()
    acts = found["verl_mas"]["acts"]
    assert [act["agent"] for act in acts] == ["solver", "verifier", "solver"]
    assert found["choices"][0]["message"]["content"] == acts[-1]["text"] and found["model"] == "team"
    usage = found["usage"]
    assert 3 <= usage["completion_tokens"] <= 36 and usage["prompt_tokens"] > 100
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def events(reply):
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_a_stream_has_the_answer_then_the_reason_then_the_usage(runtime):
    ask = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    team_reply, policy_reply = await replies(runtime, {"model": "team", **ask}, {"model": "team/a", **ask})
    for reply in (team_reply, policy_reply):
        found = events(reply)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert found[0]["choices"][0]["delta"]["role"] == "assistant"
        assert found[-2]["choices"][0]["finish_reason"] in ("stop", "length")
        assert found[-1]["usage"]["completion_tokens"] > 0


async def test_the_words_of_a_policy_alone_are_streamed_as_they_come(runtime, monkeypatch):
    """The agent and its policy have different names."""

    class Spoken:
        async def generate(self, request, n=1):
            for word in ("two ", "words"):
                ON_TEXT.get()(word)
            return [Generation("two words", "stop")] * n

    monkeypatch.setitem(runtime.clients, "a", Spoken())
    [reply] = await replies(runtime, {"model": "team/a", "stream": True, **ASK})
    deltas = [event["choices"][0]["delta"].get("content") for event in events(reply)]
    assert [text for text in deltas if text] == ["two ", "words"]


async def test_a_stream_is_kept_alive_and_ends_with_the_reason_if_it_fails(runtime, monkeypatch):
    class Fails:
        async def generate(self, request, n=1):
            ON_TEXT.get()("two ")
            await asyncio.sleep(0.1)
            raise EngineLost("lost")

    monkeypatch.setattr("verl_mas.results.serve.app.ALIVE_S", 0.02)
    monkeypatch.setitem(runtime.clients, "a", Fails())
    [reply] = await replies(runtime, {"model": "team/a", "stream": True, **ASK})
    first, *_, last, _ = reply.text.split("\n\n")
    assert '"two "' in first and ": still working\n\n" in reply.text and "engine_lost" in last


async def test_a_lost_engine_is_named_in_the_log_alone(runtime, monkeypatch, caplog):
    class Lost:
        async def generate(self, request, n=1):
            raise EngineLost("the engine of /srv/weights is lost")

    monkeypatch.setitem(runtime.clients, "a", Lost())
    for reply in await replies(runtime, *[{"model": "team/a", **ASK}] * 2):
        assert reply.status_code == 503 and "/srv" not in reply.text
    assert [entry.getMessage() for entry in caplog.records] == ["the engine of /srv/weights is lost"]


def test_a_device_that_is_not_here_is_refused(folder):
    with pytest.raises(ConfigError, match="engine device=cuda:77: "):
        Runtime(folder, EngineSettings(device="cuda:77"))


async def test_a_wrong_request_is_refused_with_the_reason(runtime):
    wrong = yaml.safe_load((Path(__file__).parent / "requests.yaml").read_text().replace("LONG", "x" * 600))
    bodies = [each["body"].encode() if isinstance(each["body"], str) else each["body"] for each in wrong]
    for reply, each in zip(await replies(runtime, *bodies), wrong, strict=True):
        assert reply.status_code == each["status"] and each["says"] in reply.json()["error"]["message"]


async def test_a_key_is_asked_for_and_a_limit_holds(runtime):
    server = TeamServer(runtime, name="team", key="secret", max_sessions=1)
    body = {"model": "team", **ASK}
    assert (await post(server, body)).status_code == 401
    assert (await post(server, body, Authorization="Bearer wrong")).status_code == 401
    many = await asyncio.gather(*[post(server, body, Authorization="Bearer secret") for _ in range(3)])
    assert sorted(reply.status_code for reply in many) == [200, 429, 429]
    async with client_of(server) as client:
        assert (await client.get("/metrics")).status_code == 401
        measured = (await client.get("/metrics", headers={"Authorization": "Bearer secret"})).text.splitlines()
    statuses = {200: 1, 401: 2, 429: 2}.items()
    counted = {f'verl_mas_request_seconds_count{{status="{code}"}} {n}.0' for code, n in statuses}
    assert {"verl_mas_sessions 0.0", *counted} <= set(measured)


async def test_a_page_of_another_site_cannot_ask(runtime):
    site = "http://evil.example"
    for headers, status in (
        ({"Content-Type": "text/plain"}, 415),
        ({"Origin": site}, 403),
        ({"Host": "evil.example", "Origin": site}, 403),
        ({"Host": "localhost:80", "Origin": "http://localhost:80"}, 400),
        ({"Host": "[::1]"}, 400),
        ({"Origin": "http://["}, 403),
    ):
        assert (await post(TeamServer(runtime, name="team"), b"{", **headers)).status_code == status, headers


@pytest.mark.parametrize(("waits", "status"), [(60, 408), (0, 499)])
async def test_a_body_that_does_not_end_is_given_up(runtime, monkeypatch, waits, status):
    """The body does not arrive in time, or the client has disconnected."""
    monkeypatch.setattr("verl_mas.gateway.server.BODY_S", 0.1)
    sent = []

    async def never():
        if not sent:
            await asyncio.sleep(waits)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
    await TeamServer(runtime, name="team").app()(scope, never, send)
    assert sent[0]["status"] == status


async def test_an_endpoint_that_fails_is_named(folder, serve):
    endpoint = serve(lambda body: 500)
    given = {name: {"base_url": endpoint.url, "model": name} for name in ("a", "b")}
    [reply] = await replies(Runtime(folder, endpoints=given), {"model": "team", **ASK})
    assert reply.status_code == 502 and f"policy a at {endpoint.url}" in reply.json()["error"]["message"]


def test_a_port_in_use_and_an_open_host_are_refused_before_anything_is_loaded(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = output_of(capsys, "serve", tmp_path, "--port", taken.getsockname()[1], code=1)
    assert "already in use" in message.lower()
    open_host = output_of(capsys, "serve", tmp_path, "--host", "0.0.0.0", "--port", "0", code=1)
    assert "--host 0.0.0.0 without --api-key-env" in open_host


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "test.jsonl"
    with path.open("w") as file:
        for number in range(3):
            prompt, truth = [{"role": "user", "content": f"{number} + {number}?"}], {"ground_truth": str(2 * number)}
            file.write(json.dumps({"prompt": prompt, "data_source": "sums", "reward_model": truth}) + "\n")
    return path


def test_an_evaluation_continues_where_it_stopped_and_compares_two_teams(folder, data, tmp_path, capsys):
    out = tmp_path / "sessions.jsonl"
    command = ["eval", folder, "--data", data, "--n", "2", "--out", out, "--json", *THREADS]
    first = json.loads(output_of(capsys, *command))["teams"][0]
    assert first["tasks"] == 3 and first["sessions"] == 6 and first["failed"] == 0
    assert first["sources"]["sums"]["pass@2"] == 0.0 and first["agents"]["solver"]["acts_per_session"] == 2
    whole = out.read_text().splitlines()
    # Cut the last line, as a kill would. Its session is run again, and is the same.
    out.write_text("\n".join([*whole[:-1], whole[-1][:40]]))
    other = shutil.copytree(folder, tmp_path / "other")
    again = json.loads(output_of(capsys, *command, "--compare", other))
    assert again["teams"][0] == first
    names = [f"{name}{end}" for name in ("mean@2", "pass@1", "pass@2") for end in ("", "/low", "/high")]
    assert again["difference"]["sums"] == dict.fromkeys(names, 0.0)
    assert "another sampling" in output_of(capsys, *command, "--sampling", "temperature=0.5", code=1)
    assert "another engine" in output_of(capsys, *command, "--engine", "dtype=bfloat16", code=1)
    both = ["--compare", folder, "--endpoint", "a=http://127.0.0.1:1/v1"]
    assert "--compare with --endpoint" in output_of(capsys, *command, *both, code=2)


def test_an_evaluation_that_failed_is_one_json_object(folder, data, capsys):
    data.write_text(json.dumps({"prompt": [{"role": "user", "content": "x" * 600}], "data_source": "sums"}) + "\n")
    assert cli.main(["eval", str(folder), "--data", str(data), "--force", "--json", *THREADS]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["accepted"] and "1 of 1 sessions" in found["errors"][0]["value"]


def test_data_that_no_team_can_be_asked_is_refused(folder, data, tmp_path, capsys):
    extra = '{"prompt": [{"role": "user", "content": "q"}], "extra_info": "none"}\n'
    texts = {"{}\n": "has no prompt", '{"prompt": "text"}\n': "list of messages", "": "has no row"}
    texts[extra] = "extra_info='none'"
    for content, says in texts.items():
        data.write_text(content)
        assert says in output_of(capsys, "eval", folder, "--data", data, code=1)
