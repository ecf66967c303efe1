from __future__ import annotations

import json
import math

import numpy as np

import verl_mas
from verl_mas.serve.replies import transcript


def test_a_transcript_is_json_whatever_a_session_reports():
    session = verl_mas.run("single", "2 + 2?", verl_mas.ScriptedLLM("4"))
    session.outcome = verl_mas.Outcome("4", reward=1.0, info={"acc": np.float32(0.5), "ratio": math.nan})
    found = json.loads(json.dumps(transcript(session), allow_nan=False))
    assert found["info"] == {"acc": 0.5, "ratio": "NaN"} and found["acts"][0]["text"] == "4"
