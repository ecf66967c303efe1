"""The environment of a session: worlds, sandboxes, search, tools, graders.

- `worlds/`: games and simulations of other packages, as tasks of a team.
- `execution/`: sandboxes for programs that a model wrote, and tests of these programs.
- `coding/`: prompts, tests and rewards that teams of coders and testers share.
- `retrieval/`: an index of passages, its server, and an async client.
- `service.py`: requests to a retriever or a sandbox that is a service.
- `mcp/`: tools of MCP servers.
- `grading/`: graders of answers, and the forms in which answers are written.
"""
