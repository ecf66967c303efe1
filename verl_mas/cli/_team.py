"""Arguments of the commands that load an exported team."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_settings, values

if TYPE_CHECKING:
    from verl_mas.results.serve.runtime import Runtime


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how policies are served, which `load_runtime` reads."""
    served = "an OpenAI-compatible server that has this policy; without one it is loaded into this process"
    add_settings(parser, "--endpoint", served, form="POLICY=URL")
    add_settings(parser, "--engine", "settings of the engine of this process: threads, device, dtype, cache_gib, seed")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that the folder and its models name"
    )


def load_runtime(options: argparse.Namespace, folder: Path, sampling: Mapping[str, object] | str = "") -> Runtime:
    from verl_mas.config.values import load_dataclass
    from verl_mas.results.serve.endpoints import Endpoint, EngineSettings
    from verl_mas.results.serve.runtime import Runtime

    given = values(options.endpoint, "POLICY=URL, or POLICY={base_url: URL, model: NAME, api_key_env: NAME}")
    endpoints: dict[str, Endpoint] = {name: at if isinstance(at, dict) else str(at) for name, at in given.items()}
    engine = load_dataclass(EngineSettings, values(options.engine), "--engine")
    return Runtime(folder, engine, endpoints, sampling=sampling, trust=options.trust_remote_code)
