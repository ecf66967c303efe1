"""The launcher, with the names that verl replaces or passes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.server_args import ServerArgs


def _set_envs_and_config(server_args: ServerArgs) -> None:
    """verl puts its own here."""


def init_tokenizer_manager(*args: object) -> None: ...


def run_scheduler_process(*args: object) -> None: ...


def run_detokenizer_process(*args: object) -> None: ...


class Engine:
    @classmethod
    def _launch_subprocesses(cls, server_args: ServerArgs, **functions: object) -> tuple[Any, ...]:
        _set_envs_and_config(server_args)
        return TokenizerManager(server_args), SimpleNamespace(), {}, None, None
