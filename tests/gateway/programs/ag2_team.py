"""A solver with a tool and a critic take turns over a hub."""

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import EV_CHANNEL_CLOSED, EV_PACKET, EV_TEXT, Hub, TransitionGraph


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def team(task, gateway):
    def config(name):
        return OpenAIConfig(model=name, base_url=gateway.base_url, api_key=gateway.api_key)

    hub = await Hub.open(MemoryKnowledgeStore())
    solver = await hub.register(Agent("solver", prompt="You compute.", config=config("solver"), tools=[add]))
    critic = await hub.register(Agent("critic", prompt="You check the answer.", config=config("critic")))
    graph = TransitionGraph.round_robin([critic.agent_id, solver.agent_id], max_turns=5)
    channel = await critic.open(type="workflow", target=[solver.agent_id], knobs={"graph": graph.to_dict()})
    await channel.send(task.question)
    await critic.wait_for_channel_event(
        channel_id=channel.channel_id, predicate=lambda event: event.event_type == EV_CHANNEL_CLOSED
    )
    events = await hub.read_wal(channel.channel_id)
    texts = [str(event.event_data) for event in events if event.event_type in (EV_TEXT, EV_PACKET)]
    await hub.close()
    return float(task.ground_truth in texts[-2])
