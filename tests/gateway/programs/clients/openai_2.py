"""Clients that need openai 2, with names of real models: the agent is in the address."""

import os

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

from crewai import LLM
from llama_index.llms.openai import OpenAI


def other_names(task, gateway):
    at = gateway.agent("solver")
    first = OpenAI(model="gpt-4o", api_base=at.base_url, api_key=at.api_key).complete(task.question)
    return f"{first} {LLM(model='gpt-4o', base_url=at.base_url, api_key=at.api_key).call(task.question)}"
