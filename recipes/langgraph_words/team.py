"""A scout reads a secret word and writes a message. A judge reads the message and has to answer with the word alone."""

import json
import os
import sys
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

# The name of a model is the name of an agent. Address and key are in the environment.
scout, judge = ChatOpenAI(model="scout"), ChatOpenAI(model="judge")


class State(TypedDict):
    known: str
    message: str
    answer: str


def tell(state):
    role = "You tell a friend the secret word in one short sentence."
    reply = scout.invoke([("system", role), ("user", state["known"])])
    return {"message": reply.content}


def guess(state):
    role = "Read your friend's message and answer with the secret word."
    reply = judge.invoke([("system", role), ("user", f"Message: {state['message']}")])
    return {"answer": reply.content}


graph = StateGraph(State)
graph.add_node("scout", tell)
graph.add_node("judge", guess)
graph.add_edge(START, "scout")
graph.add_edge("scout", "judge")
graph.add_edge("judge", END)
team = graph.compile()


def outcome(answer, word):
    """The reward is the F1 score of the words, so every word too many costs something. Success is the word alone."""
    words = answer.lower().replace(".", " ").split()
    return {"reward": 2 * (word in words) / (len(words) + 1), "answer": answer, "info": {"acc": float(words == [word])}}


if __name__ == "__main__":
    task = json.load(sys.stdin)
    answer = team.invoke({"known": task["extra_info"]["known"]})["answer"]
    os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps(outcome(answer, task["ground_truth"])).encode())
