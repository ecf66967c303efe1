"""Serve an exported team as one model of an OpenAI-compatible server.

The policies are loaded into this process, or are at --endpoint. The server has /v1/chat/completions, /v1/models,
/health and /metrics. Its model NAME/POLICY is one policy without the team.
"""

import os
import sys
from contextlib import ExitStack

from verl_mas.cli._arguments import LOOPBACK, add_address, add_team, listening, load_runtime, url_of, whole
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, raise_all
from verl_mas.util.text import is_loopback


def parser() -> Parser:
    command = Parser("verl-mas serve", __doc__)
    add_team(command)
    add_address(command, port=8000)
    keys = command.add_mutually_exclusive_group()
    keys.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key of all requests")
    keys.add_argument("--no-api-key", action="store_true", help="serve beyond this machine without a key")
    command.add_argument("--name", help="the model's name; without it that of the folder")
    busy, grace = "more requests at once get 429", "after SIGTERM, for the sessions that run"
    command.add_argument("--max-sessions", type=whole(1), default=256, metavar="N", help=busy)
    command.add_argument("--grace", type=whole(0), default=60, metavar="SECONDS", help=grace)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    key = _key(options.host, options.api_key_env, allowed=options.no_api_key)
    # Listen before the models are loaded, so that a port in use is reported at once.
    with listening(options.host, options.port) as listens, ExitStack() as stack:
        runtime = load_runtime(options, options.dir)
        stack.callback(runtime.stop)
        from verl_mas.results.serve.app import TeamServer
        from verl_mas.util.http_server import Server

        server = TeamServer(runtime, name=options.name, key=key, max_sessions=options.max_sessions)
        sys.stdout.write(f"{url_of(listens)}/v1 serves {', '.join(server.models)}\n")
        sys.stdout.flush()
        Server(server.app(), grace=options.grace).run(sockets=[listens])
    return 0


def _key(host: str, variable: str | None, *, allowed: bool) -> str | None:
    if variable is not None:
        from verl_mas.gateway.endpoints.endpoint import check_key

        raise_all(check_key(variable, "--api-key-env"))
        return os.environ[variable]
    if not (allowed or is_loopback(host)):
        rule = f"without a key, a server that others can reach is open to all; {LOOPBACK} is reached from here only"
        fix = "export MY_KEY=<the key>, and add --api-key-env MY_KEY; --no-api-key serves everyone"
        raise ConfigError(f"--host {host} without --api-key-env", rule=rule, fix=fix)
    return None
