"""Split clues as a program. It sends the workflow's prompts to the gateway with the HTTP client of Python."""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection
from urllib.parse import urlsplit

import verl_mas
from verl_mas.config.hydra.recipe.split_clues.clues import SplitClues, clues_of
from verl_mas.gateway.runner import Gateway, ProgramTask

RULES = SplitClues(text="compact")


@verl_mas.program(agents=("sender", "receiver"))
def clues(task: ProgramTask, gateway: Gateway) -> verl_mas.Outcome:
    order = random.Random(f"{task.extra_info.get('index')}/{task.step}/{task.session}")
    state = RULES.opening(clues_of(task.extra_info, task.ground_truth, RULES.parts), order)
    address = urlsplit(gateway.base_url)
    connection = HTTPConnection(str(address.hostname), address.port)
    headers = {"Authorization": f"Bearer {gateway.api_key}", "Content-Type": "application/json"}
    try:
        while not RULES.over(state):
            messages = [{"role": "user", "content": RULES.prompt(state)}]
            body = json.dumps({"model": RULES.actor(state), "messages": messages})
            connection.request("POST", f"{address.path}/chat/completions", body, headers)
            reply = json.load(connection.getresponse())["choices"][0]["message"]["content"]
            state = state.after(RULES.codec(state).parse(reply))
    finally:
        connection.close()
    return RULES.outcome(state)
