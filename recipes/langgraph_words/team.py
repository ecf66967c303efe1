"""A scout reads a secret colour and writes a message. A judge knows a thing, reads the message, and has to answer with
the colour and the thing."""

import json
import os
import sys
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

# The name of a model is the name of an agent. Environment variables have the address and the key.
scout, judge = ChatOpenAI(model="scout"), ChatOpenAI(model="judge")


class State(TypedDict):
    known: str
    own: str
    message: str
    answer: str


def tell(state):
    role = "You tell a friend the secret colour in one short sentence."
    reply = scout.invoke([("system", role), ("user", state["known"])])
    return {"message": reply.content}


def guess(state):
    role = "Read your friend's message and answer with the secret colour and the secret thing."
    example = [("user", "Secret thing: chair\nMessage: The secret colour is blue."), ("assistant", "blue chair")]
    asked = f"{state['own']}\nMessage: {state['message']}"
    reply = judge.invoke([("system", role), *example, ("user", asked)])
    return {"answer": reply.content}


graph = StateGraph(State)
graph.add_node("scout", tell)
graph.add_node("judge", guess)
graph.add_edge(START, "scout")
graph.add_edge("scout", "judge")
graph.add_edge("judge", END)
team = graph.compile()


def outcome(answer, colour, thing):
    """The reward is the F1 score of the words, or 0 if the colour is missing. `acc` is 1 if the answer is exactly the
    colour and the thing, in this order."""
    words = answer.lower().replace(".", " ").split()
    found = (colour in words) * (1 + (thing in words))
    reward = 2 * found / (len(words) + 2)
    return {"reward": reward, "answer": answer, "info": {"acc": float(words == [colour, thing])}}


if __name__ == "__main__":
    task = json.load(sys.stdin)
    answer = team.invoke({name: task["extra_info"][name] for name in ("known", "own")})["answer"]
    result = outcome(answer, *task["ground_truth"].split())
    os.write(int(os.environ["VERL_MAS_OUTCOME_FD"]), json.dumps(result).encode())
