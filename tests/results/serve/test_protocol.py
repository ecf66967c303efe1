import json
import math

import numpy as np

import verl_mas
from verl_mas.results.serve.protocol import answer_of, transcript


def test_a_transcript_is_json_whatever_a_session_reports():
    session = verl_mas.run("single", "2 + 2?", verl_mas.ScriptedLLM("4"))
    session.outcome = verl_mas.Outcome("4", reward=1.0, info={"acc": np.float32(0.5), "ratio": math.nan})
    found = json.loads(json.dumps(transcript(session), allow_nan=False))
    assert found["info"] == {"acc": 0.5, "ratio": "NaN"} and found["acts"][0]["text"] == "4"


class Candidates(verl_mas.Workflow):
    agents = ("a",)

    async def run(self, task, team):
        replies = await team.a.branch("q", k=2)
        replies[0].reward, replies[1].reward = 1.0, 0.0
        team.commit(replies)
        return verl_mas.Outcome(reward=1.0)


def test_without_an_answer_the_last_committed_reply_is_served_and_no_other_candidate():
    session = verl_mas.run(Candidates(), "?", verl_mas.ScriptedLLM(lambda request, branch: f"candidate {branch}"))
    assert session.replies[-1].text == "candidate 1"
    assert answer_of(session).text == "candidate 0"
