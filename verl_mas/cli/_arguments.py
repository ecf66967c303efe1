"""The arguments that commands share, and the checks of their values. An option means the same in every command.

A command's module has `parser()`, which must be quick, because help, completion and docs/start/cli.md are made from it,
and `main(argv)`, which imports the modules that are slow to import.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from verl_mas.cli._parser import SETTING, UsageError
from verl_mas.errors import ConfigError

if TYPE_CHECKING:
    from verl_mas.results.serve.runtime import Runtime

FILE_ENDINGS = (".parquet", ".json", ".jsonl", ".csv", ".html", ".txt")
LOOPBACK = "127.0.0.1"


def add_run(parser: argparse.ArgumentParser, *, several: bool = False, what: str = "") -> None:
    meaning = what or f"the folder of a run (trainer.default_local_dir){'; several are compared' if several else ''}"
    parser.add_argument("run", metavar="RUN", type=Path, nargs="+" if several else None, help=meaning)


def one_or_two(folders: Sequence[Path]) -> None:
    """Refuse more than two runs, or the same run twice, for a command that shows one run or compares two."""
    if len(folders) > 2:
        rule = "one run is shown, or two are compared"
        raise UsageError(f"{len(folders)} runs", rule=rule, fix="give one or two folders")
    if len({*map(realpath, folders)}) < len(folders):
        rule = "two runs are compared"
        raise UsageError(f"{folders[0]} twice", rule=rule, fix="give the folder of another run, or one alone")


def add_out(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    """Add `--out` as `options.out`, a Path, and `--force`. Before writing, call `free(options.out, options.force)`."""
    parser.add_argument("--out", type=Path, metavar="PATH", required=required, help=what)
    parser.add_argument("--force", action="store_true", help="replace what is there already")


def free(path: Path, force: bool, *names: str) -> Path:
    """Return `path` if nothing exists there or `force` is set; else raise ConfigError. With `names`, `path` is a folder
    that may exist, but no file with one of these names may exist in the folder unless `force` is set."""
    if names and path.suffix in FILE_ENDINGS:
        raise ConfigError(f"--out {path}", rule="a folder is written", fix=f"use --out {path.with_suffix('')}")
    for existing in [path / name for name in names] if names else [path]:
        if not force and (existing.exists() or existing.is_symlink()):
            fix = "choose another --out, or add --force to write all the same"
            raise ConfigError(f"{existing} exists", rule="what exists is kept", fix=fix)
    for above in [path, *path.parents] if names else path.parents:
        if above.exists() and not above.is_dir():
            raise ConfigError(f"--out {path}", rule=f"{above} is a file, not a folder", fix="choose another --out")
    return path


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add `--steps` as `options.steps`, a string that `steps_of` parses."""
    parser.add_argument("--steps", metavar="FIRST-LAST", help="only these steps")


def steps_of(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last step, such as 3 and 8 for `--steps 3-8`, or None if the option is not given."""
    if text is None:
        return None
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise ConfigError(f"--steps {text}", rule="a step, or the first and the last of several", fix="use --steps 3-8")
    return int(first), int(last or first)


def add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--limit", type=whole(1), metavar="N", help=what)


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help=what)


def add_address(parser: argparse.ArgumentParser, *, port: int) -> None:
    """Add `--host` and `--port`. Without --host, a server accepts only connections from this machine."""
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on; 0.0.0.0: every network of this machine")
    parser.add_argument("--port", type=whole(0, 65535), default=port, metavar="N", help="0: a free one")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address. A server that opened the socket itself would report a port in use
    only after everything is loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=2048)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        value = f"--host {host} --port {port}: {getattr(error, 'strerror', error)}"
        rule = "the server listens on an address of this machine, at a port that is free"
        raise ConfigError(value, rule=rule, fix="use another --port, or --port 0 for a free one") from error


def url_of(listens: socket.socket) -> str:
    host, port = listens.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Options(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **how: Any) -> object: ...


def add_settings(parser: _Options, option: str, what: str, *, form: str = SETTING) -> None:
    """Add an option that takes one or more NAME=VALUE pairs and may be repeated. `values` reads the pairs."""
    assert "=" in form
    parser.add_argument(option, action="append", default=[], metavar=form, help=what)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the argparse `type` of an integer of at least `least` and, unless `most` is None, at most `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return number

    return read


def pairs(given: Sequence[str], form: str = SETTING) -> dict[str, str]:
    """Split `size=4 walls=0.2` into names and values."""
    mapping = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{text!r}", rule=f"the form is {form}", fix="write the name, '=' and the value")
        if name in mapping:
            twice = f"{name}={value}, and {name} before"
            raise ConfigError(twice, rule="a name has one value", fix="leave one of them out")
        mapping[name] = value
    return mapping


def values(given: Sequence[str], form: str = SETTING) -> dict[str, object]:
    """Split `size=4 walls=0.2` into names and values, which are read as YAML."""
    return {name: _value(name, text) for name, text in pairs(given, form).items()}


def _value(name: str, text: str) -> object:
    import yaml
    from omegaconf import OmegaConf

    try:
        # Read the value as Hydra does: 1e-3 is a number, whereas YAML 1.1 reads it as a string.
        read = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
        assert isinstance(read, dict)
        return read["value"]
    except yaml.YAMLError as error:
        # A value such as `{*:solver}` is not YAML, but Hydra reads it as a mapping on the command line of a run.
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        with suppress(HydraException):
            read_by_hydra: object = OverridesParser.create().parse_override(f"{name}={text}").value()
            return read_by_hydra
        raise ConfigError(f"{name}={text}", rule="a value is read as YAML", fix="give a number or a word") from error


def check_noise(noise: float | None) -> None:
    if noise is not None and not 0 <= noise < 1:
        raise ConfigError(f"--noise {noise}", rule="it is at least 0 and less than 1", fix="use --noise 0.25")


def check_share(option: str, share: float | None) -> None:
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"{option} {share}", rule="a share is 0 to 1", fix=f"use {option} 0.5")


def add_rows(parser: argparse.ArgumentParser, *, train: int | None, test: int | None) -> None:
    """Add `--train-rows` and `--test-rows`. Without a default, all rows are used."""
    parser.add_argument("--train-rows", type=whole(1), default=train, metavar="N", help="rows to train on")
    parser.add_argument("--test-rows", type=whole(1), default=test, metavar="N", help="held-out rows")


def takes_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ARGUMENTS to the usage: the arguments of a training run, which `parse_known_args` returns in their order.

    They are not declared to argparse, because it would change their order if they include options of Hydra.
    """
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    parser.usage = f"{usage} ARGUMENTS"


def add_machines(parser: argparse.ArgumentParser) -> None:
    gpus = "GPUs of the run, which this machine need not have: 8x80 is eight of 80 GB, 2x8x80 two such nodes"
    parser.add_argument("--gpus", metavar="GPUS", help=gpus)


# Commands that load an exported team.


def add_team(parser: argparse.ArgumentParser) -> None:
    """Add the folder of an exported team, and the options that say how its policies are served, which `load_runtime`
    reads."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a folder that `verl-mas export` wrote, with team.yaml")
    served = "an OpenAI-compatible server that has this policy; without one it is loaded into this process"
    add_settings(parser, "--endpoint", served, form="POLICY=URL")
    add_settings(parser, "--engine", "settings of the engine of this process: threads, device, dtype, cache_gib, seed")
    trusted = "run the code that the folder and its models name"
    parser.add_argument("--trust-remote-code", action="store_true", help=trusted)


def load_runtime(options: argparse.Namespace, folder: Path, sampling: Mapping[str, object] | str = "") -> Runtime:
    from verl_mas.config.values import load_dataclass
    from verl_mas.results.serve.endpoints import Endpoint, EngineSettings
    from verl_mas.results.serve.runtime import Runtime

    given = values(options.endpoint, "POLICY=URL, or POLICY={base_url: URL, model: NAME, api_key_env: NAME}")
    endpoints: dict[str, Endpoint] = {name: at if isinstance(at, dict) else str(at) for name, at in given.items()}
    engine = load_dataclass(EngineSettings, values(options.engine), "--engine")
    return Runtime(folder, engine, endpoints, sampling=sampling, trust=options.trust_remote_code)
