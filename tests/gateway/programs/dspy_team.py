"""Two modules of DSPy as agents: one drafts, the other revises. Each has a language model of its own name."""

import dspy
from dspy.utils.exceptions import AdapterParseError


def model(name, gateway):
    # With DSPy's cache, every session of a group would get the same reply.
    return dspy.LM(f"openai/{name}", api_base=gateway.base_url, api_key=gateway.api_key, cache=False)


class Team(dspy.Module):
    def __init__(self, gateway):
        super().__init__()
        self.drafter = dspy.ChainOfThought("question -> answer")
        self.reviser = dspy.ChainOfThought("question, draft -> answer")
        self.drafter.set_lm(model("drafter", gateway))
        self.reviser.set_lm(model("reviser", gateway))

    def forward(self, question):
        draft = answer_of(self.drafter, question=question)
        return dspy.Prediction(answer=answer_of(self.reviser, question=question, draft=draft))


def answer_of(module, **inputs):
    """Return the answer of a module. If its reply cannot be parsed, the answer is empty, so that the session is trained
    on without a reward."""
    try:
        return module(**inputs).answer
    except AdapterParseError:
        return ""


def team(task, gateway):
    return Team(gateway)(question=task.question).answer
