"""Sessions of a task in a worker: rows, the group's status, faults, counts, trajectories."""

import asyncio
import gc
import subprocess
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_mas.config.schema import AgentSpec, FaultSpec, PolicySpec, TrajectorySpec
from verl_mas.errors import ConfigError, DiskError, EngineLost
from verl_mas.results.sessions.reader import read_sessions
from verl_mas.rollout import worker as module
from verl_mas.rollout.counts import SessionCounts
from verl_mas.rollout.manager import MasAgentLoopManager
from verl_mas.rollout.team_client import Served
from verl_mas.run_folder.session_files import write_advantages
from verl_mas.workflow import Outcome, Tag
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.tool_sources import tools_of
from verl_mas.workflows.single import Single

OURS = {"temperature"}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


async def solve(task, team):
    """Fails in session 1."""
    reply = await team.solver.act(task.messages)
    reply.parse(Tag())
    if task.session == 1:
        raise RuntimeError("trouble")
    return Outcome(answer=reply, reward=0.5)


async def hopeless(task, team):
    raise RuntimeError("always")


@pytest.fixture
def scored(monkeypatch):
    """Let verl's reward loop return a score for a worker's answers, or raise an error. Return the list of its calls."""

    def scored(it, score, **info):
        calls = []

        async def compute(outputs, kwargs):
            if isinstance(score, Exception):
                raise score
            calls.append((outputs[-1], kwargs))
            outputs[-1].reward_score = score
            outputs[-1].extra_fields["reward_extra_info"] = info

        monkeypatch.setattr(it.worker, "_compute_score", compute)
        return calls

    return scored


def test_a_reward_that_does_not_return_is_named_while_it_is_awaited(make, monkeypatch, caplog):
    """The session waits for the reward until its time limit. The log names the reward long before."""

    async def unscored(task, team):
        return Outcome(answer=await team.solver.act(task.messages))

    it = make(unscored, n=1, faults=FaultSpec(retries=0, session_timeout_s=0.3))

    async def never(outputs, kwargs):
        await asyncio.sleep(60)

    monkeypatch.setattr(it.worker, "_compute_score", never)
    monkeypatch.setattr(module, "LATE_REWARD_S", 0.05)
    it.run()
    assert "the reward of session u_0 has been awaited for 0 s" in caplog.text
    assert it.counts().faults == {"timeout": 1}


@pytest.fixture
def manager(monkeypatch):
    """Make a manager of workers with the given answers to `pop_counts`."""

    def manager(*answers):
        monkeypatch.setattr("ray.get", lambda parts: parts)
        made = object.__new__(MasAgentLoopManager)
        made.agent_loop_workers = [SimpleNamespace(pop_counts=SimpleNamespace(remote=answer)) for answer in answers]
        return made

    return manager


def test_one_agent_writes_what_verls_single_turn_agent_writes(make, scored, monkeypatch):
    """The workflow plays every task, whatever agent loop its row names."""

    async def no_teacher(*args, **kwargs):
        pass

    def rows(verls):
        it = make(Single, answer=lambda prompt, number: f"answer {len(prompt)}")
        monkeypatch.setattr(agent_loop_tq, "tq", it.queue)
        scored(it, 0.25, acc=0.25)
        monkeypatch.setattr(it.worker, "_compute_teacher_logprobs", no_teacher)
        it.worker.llm_client, it.worker.hf_model_type = it.client, "qwen2"
        it.worker.dataset_cls, it.worker.tools = RLHFDataset, []
        it.run(verls=verls, agent_name="single_turn_agent", sampling=SAMPLING)
        return it.queue

    theirs, ours = rows(verls=True), rows(verls=False)
    assert theirs.fields.keys() == ours.fields.keys() == {"u_0_0", "u_1_0", "u_2_0"}
    assert theirs.status == ours.status
    for key, fields in theirs.fields.items():
        mine = {name: value for name, value in ours.fields[key].items() if name not in OURS}
        assert mine.pop("metrics").keys() == fields.pop("metrics").keys()
        mine["extra_fields"].pop("global_steps"), fields["extra_fields"].pop("global_steps")
        for steps in ("min_global_steps", "max_global_steps"):
            assert mine["extra_fields"].pop(steps) is not None and fields["extra_fields"].pop(steps) is not None
        assert mine == fields
        mine_tags = ours.rows[key]
        assert {k: v for k, v in theirs.rows[key].items() if "_global" not in k}.items() <= mine_tags.items()


def test_a_dropped_session_leaves_its_siblings_and_the_task_is_finished(make, tmp_path):
    it = make(solve)
    it.run()
    assert sorted(it.queue.rows) == ["u_0_0", "u_2_0"] and it.queue.status["u"] == ["running", "finished"]
    counts = it.counts()
    assert (counts.sessions, counts.dropped, counts.faults) == (3, 1, {"workflow": 1})
    assert it.counts() == SessionCounts(busy={"main": ()}, requests={"main": 0.0})
    write_advantages(tmp_path, 4, "1", {"u_0_0": 1.25})
    sessions = {session["session"]: session for session in read_sessions(tmp_path)}
    assert [sessions[n]["status"] for n in range(3)] == ["finished", "dropped", "finished"]
    assert sessions[0]["acts"][0]["advantage"] == 1.25 and sessions[2]["acts"][0]["advantage"] is None
    (fault,) = sessions[1]["faults"]
    assert 'in solve\n    raise RuntimeError("trouble")\nRuntimeError: trouble' in fault.pop("traceback")
    assert fault == {"attempt": 0, "kind": "workflow", "agent": None, "turn": None, "cause": "RuntimeError: trouble"}
    act = sessions[0]["acts"][0]
    assert (act["text"], act["malformed"], act["sampled_tokens"], act["key"]) == ("x", "no <answer>", 2, "u_0_0")
    assert sessions[0]["outcome"] == {"answer": "x", "reward": 0.5, "info": {}} and sessions[0]["schema"] == 2


@pytest.mark.parametrize(("played", "then"), [(solve, "fail_group"), (hopeless, "drop_session")])
def test_a_task_whose_group_fails_or_without_rows_is_a_failure_that_can_be_replaced(make, played, then):
    it = make(played, faults=FaultSpec(then=then, retries=0))
    it.run()
    assert it.queue.rows == {} and it.queue.status["u"] == ["running", "failure"]
    assert it.counts().groups_given_up == (then == "fail_group")


@pytest.mark.parametrize("then", ["drop_session", "fail_group"])
def test_a_failed_validation_session_counts_as_zero(make, then):
    it = make(solve, faults=FaultSpec(then=then, retries=0))
    it.run(validate=True)
    assert sorted(it.queue.rows) == ["u_0_0", "u_1_0", "u_2_0"] and it.queue.status["u"] == ["running", "finished"]
    assert not it.queue.rows["u_1_0"]["trainable"]
    assert it.counts(True).dropped == 1


def test_a_task_may_have_its_own_number_of_sessions_and_be_greedy(make):
    it = make(solve)
    it.run(__rollout_n__=1, __do_sample__=False)
    assert sorted(it.queue.rows) == ["u_0_0"]
    assert it.server.calls[0]["sampling_params"]["temperature"] == 0


def test_a_lost_engine_ends_the_run_at_the_next_call(make, monkeypatch):
    it = make(solve)

    async def dead(**kwargs):
        raise ray.exceptions.RayActorError()

    monkeypatch.setattr(it.server, "remote", dead)
    it.run()
    assert it.queue.status["u"] == ["running", "failure"], "the replay buffer must not wait for this task indefinitely"
    with pytest.raises(EngineLost):
        it.counts()
    with pytest.raises(EngineLost):
        it.call(it.worker.generate_sequences(None))


def test_a_session_that_cannot_be_recorded_ends_the_run_and_names_the_disk(make, tmp_path):
    it = make(solve)
    (tmp_path / "train").write_text("a file where the folder belongs")
    it.run()
    assert it.queue.rows == {} and it.queue.status["u"] == ["running", "failure"]
    with pytest.raises(DiskError, match=r"000004-1-\w+\.jsonl cannot be written: .* GB are free on the disk at"):
        it.counts()


async def answers(task, team):
    await team.solver.act("q")
    return Outcome(answer="42", info={"note \ud83d": ["\ud83d\0"]})


def test_a_lost_reward_worker_ends_the_run_and_is_not_a_failure_of_sessions(make, scored):
    it = make(answers)
    scored(it, ray.exceptions.ActorDiedError())
    it.run()
    with pytest.raises(EngineLost, match="a reward worker is gone"):
        it.counts()


def test_a_reward_function_that_returns_no_number_fails_its_session(make, scored):
    it = make(answers, n=1)
    scored(it, float("nan"))
    it.run()
    counts = it.counts()
    assert counts.failed == {"workflow": 1}
    assert "the score of the reward function is nan" in counts.first_faults["workflow"]


def test_the_first_fault_of_a_kind_is_logged_whole_and_later_ones_in_one_line(make, caplog):
    it = make(hopeless)
    it.run()
    first, *others = [record.getMessage() for record in caplog.records if "always" in record.getMessage()]
    assert first.startswith("the first workflow in this worker: session u_0: workflow: RuntimeError: always")
    assert "Traceback" in first and "in hopeless" in first
    assert others == [f"session u_{number}: workflow: RuntimeError: always" for number in (1, 2)]


def test_a_failed_session_of_a_validation_has_a_row_of_a_policy_that_an_agent_acts_on(make):
    it = make(hopeless, n=1)
    it.worker.models = {"a base": it.worker.models["main"], **it.worker.models}
    it.run(validate=True)
    assert [tags["policy"] for tags in it.queue.rows.values()] == ["main"]


@pytest.mark.parametrize("validate", [False, True])
def test_lone_surrogates_and_null_bytes_fail_no_more_than_their_sessions(make, validate, tmp_path):
    it = make(solve, n=1)
    it.run(validate=validate, raw_prompt=[{"role": "user", "content": "half \ud83d, null \0"}])
    counts = it.counts(validate)
    assert counts.failed == {"refused": 1}
    (session,) = read_sessions(tmp_path, validate=validate)
    assert session["task"]["messages"][0]["content"] == "half \ud83d, null \0" and session["status"] == "dropped"


def test_what_a_session_reports_reaches_metrics_and_rows_as_text_that_every_file_takes(make, monkeypatch):
    async def reports(task, team):
        outcome = await answers(task, team)
        return Outcome(reward=1.0, info={**outcome.info, "\ud83d": 2})

    it = make(reports, n=1)
    it.run()
    (fields,) = it.queue.fields.values()
    assert fields["extra_fields"]["reward_extra_info"]["note \\ud83d"] == ["\\ud83d\0"]
    assert it.counts().metrics()["session/\\ud83d/mean"] == 2


def test_an_answer_that_is_text_is_scored_as_verls_tokenizer_writes_it(make, scored):
    it = make(answers, n=1)
    calls = scored(it, 0.75, acc=1.0)
    it.run()
    [(answer, dataset)] = calls
    assert (it.worker.tokenizer.decode(answer.response_ids), dataset["session_id"]) == ("42", 0)
    assert list(it.queue.rows) == ["u_0_0"]


def test_the_workers_of_a_team_get_their_clients_from_the_teams_trainer_alone(loop):
    begun = []
    manager = object.__new__(MasAgentLoopManager)
    manager.config, manager.teacher_client, manager.reward_loop_worker_handles = "config", None, None
    begin = SimpleNamespace(remote=lambda *given: asyncio.sleep(0, begun.append(given)))
    manager.llm_client = Served({"a": "client"}, [SimpleNamespace(begin=begin)])
    loop.run_until_complete(manager._init_agent_loop_workers())
    assert begun == [("config", {"a": "client"}, None, None)]
    manager.llm_client = SimpleNamespace()
    with pytest.raises(ConfigError, match="trainer_mode=mas"):
        loop.run_until_complete(manager._init_agent_loop_workers())


@pytest.mark.e2e
def test_the_worker_can_be_the_first_module_a_process_imports(warm_python):
    """Ray imports this module first in a process. The import reaches verl's trainers, and from there the plugin."""
    code = "import verl_mas.rollout.worker; from verl.trainer.ppo.v1 import get_trainer_cls; get_trainer_cls('mas')"
    subprocess.run([warm_python, "-c", code], check=True, timeout=120)


def test_the_manager_adds_up_its_workers(manager):
    busy = SessionCounts(sessions=3, acts=6, failed={"timeout": 1}, faults={"timeout": 2}, act_seconds=6.0)
    busy += SessionCounts(busy={"p": ((0.0, 2.0),)}, requests={"p": 5.0}, lag=0.25)
    other = SessionCounts(sessions=1, acts=2, busy={"p": ((1.0, 3.0),)}, requests={"p": 4.0}, lag=0.5)
    assert manager(lambda validate: busy, lambda validate: other).pop_counts().metrics() == {
        "session/count": 4.0,
        "session/acts/mean": 2.0,
        "session/seconds/mean": 0.0,
        "session/seconds/acts": 1.5,
        "session/loop_lag": 0.5,
        "policy/p/requests": 3.0,
        "session/generated_tokens": 0,
        "session/dropped": 1.0,
        "session/retried": 0,
        "session/faults/timeout": 2.0,
    }


@pytest.mark.parametrize("enabled", [True, False])
def test_the_trainers_advantages_are_written_beside_the_sessions(manager, tmp_path, enabled):
    own, trainer = manager(), {"default_local_dir": str(tmp_path)}
    vars(own).update(_spec=TrajectorySpec(enabled=enabled))
    own.config = OmegaConf.create({"trainer": trainer, module.ATTEMPT: "1"})
    own.record_advantages(3, {"u_0_0": 0.5})
    assert (tmp_path / "trajectories" / "train" / "000003-1-advantages.jsonl.zst").exists() == enabled


class Counts(BaseTool):
    """A tool of verl that stores something for the reward function."""

    def __init__(self):
        function = {"name": "count", "description": "Counts.", "parameters": {"type": "object", "properties": {}}}
        super().__init__({}, OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function}))

    async def execute(self, instance_id, parameters, agent_data=None, **kwargs):
        agent_data.extra_fields["counted"] = True
        return ToolResponse(text="1"), 0.5, {}


def test_calls_of_tools_reach_the_row_the_reward_function_the_counts_and_the_records(make, scored, tmp_path):
    async def acts(task, team):
        return Outcome(answer=await team.solver.act(task.messages))

    calls = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("count", "x"))
    it = make(acts, n=1, answer=lambda prompt, number: "x" if number else calls)
    OmegaConf.update(it.worker.config, "actor_rollout_ref.rollout.response_length", 512)
    agents = resolve_agents(("solver",), {"solver": AgentSpec(tools=["count"])}, {"main": PolicySpec()})
    config = it.worker.session_config
    it.worker.session_config = replace(config, agents=agents, tools=tools_of([Counts()]))
    seen = scored(it, 1.0)
    it.run()
    (fields,), (tags,) = it.queue.fields.values(), it.queue.rows.values()
    assert (fields["extra_fields"]["tool_rewards"], fields["extra_fields"]["counted"]) == ([0.5, 0.0], True)
    [(answer, _)] = seen
    assert (answer.extra_fields["tool_rewards"], answer.extra_fields["counted"]) == ([0.5, 0.0], True)
    assert (tags["team_reward"], tags["local_reward"]) == (1.0, 0.5) and fields["metrics"]["tool_calls"] > 0
    metrics = it.counts().metrics()
    assert (metrics["agent/solver/tool_calls"], metrics["agent/solver/tool_errors"]) == (2.0, 0.5)
    (session,) = read_sessions(tmp_path)
    assert [call["error"] is None for call in session["acts"][0]["tool_calls"]] == [True, False]


def test_what_only_the_collector_can_free_lives_until_a_step_ends(make, monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # a freeze would last beyond this test
    before = gc.get_threshold()
    try:
        module.collect_between_steps()
        assert gc.get_threshold() == (*before[:2], module.NEVER)
        session = type("Session", (), {})()
        session.itself, alive = session, weakref.ref(session)
        gc.collect(1)  # moves the session out of the young generation
        del session
        gc.collect(1)
        assert alive() is not None
        make(None).counts()
        assert alive() is None
    finally:
        gc.set_threshold(*before)
