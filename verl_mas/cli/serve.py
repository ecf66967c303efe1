"""Serve an exported team as one model of an OpenAI-compatible server.

The policies are loaded into this process, or are at --endpoint. The server has /v1/chat/completions, /v1/models and
/health. A policy alone is the model NAME/POLICY.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

from verl_mas.cli._arguments import LOOPBACK, add_address, add_team, whole
from verl_mas.cli._parser import Parser
from verl_mas.cli._team import add_loading, loaded
from verl_mas.errors import ConfigError, raise_all


def parser() -> Parser:
    made = Parser("verl-mas serve", __doc__)
    add_team(made)
    add_address(made, port=8000)
    made.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key of all requests")
    made.add_argument("--no-api-key", action="store_true", help="serve beyond this machine without a key")
    made.add_argument("--name", help="the model's name; without it that of the folder")
    made.add_argument("--max-sessions", type=whole(1), default=256, metavar="N", help="more requests at once get 429")
    add_loading(made)
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    key = _key(options.host, options.api_key_env, allowed=options.no_api_key)
    # Before models are loaded: a port in use is found at once.
    with _bound(options.host, options.port) as listening, loaded(options, options.dir) as runtime:
        import uvicorn

        from verl_mas.serve.app import TeamServer

        server = TeamServer(runtime, name=options.name, key=key, max_sessions=options.max_sessions)
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sys.stdout.write(f"http://{address}/v1 serves {', '.join(server.models)}\n")
        sys.stdout.flush()
        config = uvicorn.Config(server.app(), log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _key(host: str, variable: str | None, *, allowed: bool) -> str | None:
    if variable is not None:
        from verl_mas.workflow.endpoint import check_key

        raise_all(check_key(variable, "--api-key-env"))
        return os.environ[variable]
    if not (allowed or _is_loopback(host)):
        raise ConfigError(
            f"--host {host} without --api-key-env",
            rule=f"without a key, a server that others can reach is open to all; {LOOPBACK} is reached from here only",
            fix="export MY_KEY=<the key>, and add --api-key-env MY_KEY; --no-api-key serves everyone",
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Only a socket that listens is refused to the next one.
        made.listen(2048)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: {error.strerror}",
            rule="the server listens on an address of this machine, at a port that is free",
            fix="use another --port, or --port 0 for a free one",
        ) from error
    return made
