"""The `mas.mcp` block: types, meanings and ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from verl_mas.config.values import Checked, Positive
from verl_mas.errors import ConfigError


@dataclass
class McpSpec(Checked):
    """`mas.mcp.<name>`: a server of tools that speaks MCP, either a program or a URL."""

    command: list[str] = field(default_factory=list)
    """The program and its arguments. Each agent-loop worker starts the program, and communicates with it over standard
    input and output."""

    url: str | None = None
    """The address of a running server, such as http://host:8000/mcp (streamable HTTP)."""

    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the program. The program also gets the run's HOME, LOGNAME, PATH, SHELL, TERM and
    USER."""

    pass_env: list[str] = field(default_factory=list)
    """Further variables that the program gets from the run's environment, such as an API key."""

    start_timeout_s: Positive = 30.0
    """Time limit in seconds for the server to start and list its tools. The time limit of a tool call is the
    `tool_timeout_s` of the agent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.command) == (self.url is not None):
            value = f"an MCP server with command={self.command} and url={self.url}"
            rule = "it is either a program that is started, or the URL of one that runs"
            raise ConfigError(value, rule=rule, fix="set one of the two")
        if self.url and (self.env or self.pass_env):
            value, rule = f"env or pass_env of the MCP server at {self.url}", "they are of a program that is started"
            raise ConfigError(value, rule=rule, fix="remove them")
