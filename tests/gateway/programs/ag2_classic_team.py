"""A round-robin group chat of AG2 Classic, the package `autogen`."""

from autogen import ConversableAgent, GroupChat, GroupChatManager, LLMConfig, register_function


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def team(task, gateway):
    def config(name):
        return LLMConfig(
            {"api_type": "openai", "model": name, "base_url": gateway.base_url, "api_key": gateway.api_key}
        )

    user = ConversableAgent("user", human_input_mode="NEVER", llm_config=False, default_auto_reply="Continue.")
    solver = ConversableAgent("solver", system_message="You compute.", llm_config=config("solver"))
    critic = ConversableAgent("critic", system_message="You check. Say APPROVE.", llm_config=config("critic"))
    register_function(add, caller=solver, executor=user, description="Add two numbers.")
    chat = GroupChat([user, solver, critic], messages=[], max_round=12, speaker_selection_method="round_robin")
    manager = GroupChatManager(
        groupchat=chat,
        llm_config=config("selector"),
        is_termination_msg=lambda message: "APPROVE" in str(message.get("content")),
    )
    user.initiate_chat(manager, message=task.question)
    answers = [message["content"] for message in chat.messages if message.get("name") == "solver"]
    return float(task.ground_truth in str(answers[-1]))
