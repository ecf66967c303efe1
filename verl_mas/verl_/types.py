"""Types of objects that verl-mas gets from verl and Ray. They declare only the members that verl-mas uses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

from verl_mas.util import Fields as Fields

if TYPE_CHECKING:
    from ray.actor import ActorHandle

# Ray finds an actor's methods at run time, so type checkers do not know them.
Actor: TypeAlias = "ActorHandle[Any]"
# An object of a library without type annotations.
Untyped: TypeAlias = Any
# An argument that an override passes on to verl's method unchanged.
Passed: TypeAlias = Any


class Tokenizer(Protocol):
    """A Hugging Face tokenizer."""

    eos_token_id: int
    unk_token_id: int | None
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]  # tokenizers.AddedToken
    chat_template: str | dict[str, str] | None

    def get_vocab(self) -> dict[str, int]: ...

    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


class Trajectory(TypedDict):
    """Facts that verl's agent-loop worker knows about a prompt, in addition to the prompt's fields."""

    step: int
    sample_index: int
    rollout_n: int
    validate: bool
