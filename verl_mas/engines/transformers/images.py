"""Images of a request: their pixels, and the positions that the model gives their tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from transformers import PreTrainedModel

from verl_mas.errors import RequestError
from verl_mas.verl_.types import Untyped

# The type of a model's `get_rope_index`, which verl and transformers annotate less precisely.
Positions = Callable[..., tuple[Tensor, Tensor]]
FIX = "let the policy's own processor write the prompt"


@dataclass(frozen=True)
class Picture:
    """An image in a prompt: the index of its first token, its patches, and their number in time, height and width."""

    start: int
    pixels: Tensor
    grid: Tensor


@dataclass(frozen=True)
class Sight:
    """Inputs of a model for a prompt with images, besides its tokens."""

    # The tokens, with a hash of the pixels in place of each token of an image, so that prompts with different images
    # differ.
    names: tuple[int, ...]
    pictures: tuple[Picture, ...]
    # [3, tokens]: positions in time, height and width. After the prompt, all three are the token's index plus `shift`.
    positions: Tensor
    shift: int

    def after(self, known: int, width: int) -> Tensor:
        """Return the positions of the `width` tokens after the first `known` tokens.

        Positions past the prompt's end are padding.
        """
        new = self.positions[:, known : known + width]
        return torch.nn.functional.pad(new, (0, width - new.shape[1]))


class Images:
    """Reads the images of requests as the model's processor does for verl's trainer."""

    def __init__(self, model: PreTrainedModel, processor: object):
        self._config = model.config
        self._positions: Positions | None = getattr(model.base_model, "get_rope_index", None)
        self._processor: Untyped = getattr(processor, "image_processor", None)
        self._token: int | None = getattr(model.config, "image_token_id", None)

    def read(self, prompt: Sequence[int], images: Sequence[object], options: Mapping[str, object]) -> Sight | None:
        """Read the images of a prompt; None for a prompt without images."""
        if not images and self._token is None:
            return None
        if self._positions is None or self._processor is None or self._token is None:
            value = f"images in a request to {self._config.model_type}"
            rule = "rollout.name=transformers reads images with models of M-RoPE, such as qwen2_5_vl or qwen3_vl"
            raise RequestError(value, rule=rule, fix="give this policy such a model, or send it text only")
        ids = torch.tensor(prompt)
        kinds = torch.eq(ids, self._token).int()  # 1: token of an image
        places = kinds.nonzero()[:, 0]
        if not images:
            self._check(places, 0, len(ids))
            return None
        found = self._processor(images=list(images), return_tensors="pt", **options)
        grids, patches = found["image_grid_thw"], found["image_grid_thw"].prod(dim=-1)
        sizes = patches // self._processor.merge_size**2
        self._check(places, int(sizes.sum()), len(ids))
        positions, shift = self._positions(ids[None], kinds[None], image_grid_thw=grids)
        names, pictures = ids.clone(), []
        of_image = grids, found["pixel_values"].split(patches.tolist()), places.split(sizes.tolist())
        for grid, pixels, own in zip(*of_image, strict=True):
            names[own] = _name(pixels, grid)
            pictures.append(Picture(int(own[0]), pixels, grid))
        return Sight(tuple(names.tolist()), tuple(pictures), positions[:, 0], int(shift))

    def _check(self, places: Tensor, expected: int, length: int) -> None:
        if len(places) != expected:
            value = f"a prompt with {len(places)} tokens of images"
            raise RequestError(value, rule=f"its images have {expected}", fix=FIX)
        if expected and places[-1] == length - 1:
            raise RequestError("a prompt that ends with an image", rule="text follows an image", fix=FIX)


def _name(pixels: Tensor, grid: Tensor) -> int:
    """Name an image by a negative number, which is not the id of any token."""
    digest = blake2b(pixels.numpy().tobytes() + grid.numpy().tobytes(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "little") >> 1)


def visual_inputs(rows: Sequence[tuple[Sight | None, int]], width: int, device: torch.device) -> dict[str, Tensor]:
    """Return the inputs besides tokens for a forward over the next `width` tokens of each prompt. `rows`: for each
    prompt, its images and the number of tokens that the cache has."""
    if all(sight is None for sight, _ in rows):
        return {}
    text = torch.arange(width).expand(3, -1)
    positions = [text + known if sight is None else sight.after(known, width) for sight, known in rows]
    new = [picture for sight, known in rows if sight for picture in sight.pictures if picture.start >= known]
    inputs = {"position_ids": torch.stack(positions, dim=1)}
    if new:
        inputs["pixel_values"] = torch.cat([picture.pixels for picture in new])
        inputs["image_grid_thw"] = torch.stack([picture.grid for picture in new])
    return {name: value.to(device) for name, value in inputs.items()}
