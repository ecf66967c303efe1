"""Reports a running session: streams the text of every act while it is sampled, and counts the tokens of all acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from verl_mas.workflow.client import Generation, LLMClient, Request

# A client that can stream calls this function with each new piece of text of the current generation.
ON_TEXT: ContextVar[Callable[[str], None] | None] = ContextVar("on_text", default=None)


@dataclass(frozen=True)
class ActText:
    """New text of an act. Texts of several agents may alternate, so `act` has the number of the act in the session.

    The first ActText of an act has no text, and the one with `last` ends the act.
    """

    agent: str
    act: int
    text: str = ""
    last: bool = False


Listener = Callable[[ActText], None]


@dataclass
class Usage:
    """Number of tokens of all generations of a session, including failed attempts."""

    prompt: int = 0
    completion: int = 0

    def add(self, generation: Generation) -> None:
        self.completion += generation.sampled
        # In a conversation, the ids cover the whole row, so the reply's prompt is the row without the reply's tokens.
        whole = len(generation.prompt_ids) + len(generation.response_ids) - generation.sampled
        self.prompt += whole if generation.has_tokens else generation.prompt_tokens


@dataclass
class Listening:
    """Wraps the clients of one session, to count their tokens and to report their text to `listener`."""

    listener: Listener | None = None
    usage: Usage = field(default_factory=Usage)
    acts: int = 0

    def clients(self, clients: Mapping[str, LLMClient]) -> dict[str, LLMClient]:
        return {name: _Client(client, self) for name, client in clients.items()}


@dataclass
class _Client:
    inner: LLMClient
    listening: Listening

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        self.listening.acts += 1
        if self.listening.listener is None:
            generations = await self.inner.generate(request, n)
        else:
            generations = await self._reported(request, n, self.listening.acts, self.listening.listener)
        for generation in generations:
            self.listening.usage.add(generation)
        return generations

    async def _reported(self, request: Request, n: int, act: int, listener: Listener) -> list[Generation]:
        reported: list[str] = []

        def report(text: str) -> None:
            reported.append(text)
            listener(ActText(request.agent, act, text))

        listener(ActText(request.agent, act))
        # Candidates of one prompt are sampled in parallel, so their text is reported when all of them are complete.
        token = ON_TEXT.set(report if n == 1 else None)
        try:
            generations = await self.inner.generate(request, n)
        finally:
            ON_TEXT.reset(token)
        whole, so_far = "\n".join(generation.text for generation in generations), "".join(reported)
        # Report the text that the client did not stream. If the streamed text has tool calls, which the final text
        # lacks, nothing is added.
        if whole.startswith(so_far) and whole != so_far:
            report(whole.removeprefix(so_far))
        listener(ActText(request.agent, act, last=True))
        return generations
