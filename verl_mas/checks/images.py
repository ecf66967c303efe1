"""Checks of images in rows and prompts: whether they can be read, which models read them, and how many tokens they
take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from omegaconf import DictConfig

from verl_mas.checks.data import FirstRows
from verl_mas.config.merge import SECTION
from verl_mas.config.run import View
from verl_mas.data.own_rows import IMAGE, image_part, with_images
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, RequestError
from verl_mas.planning.model_folder import local_folder, readable_json, vision_of
from verl_mas.rollout.images import image_parts, loaded
from verl_mas.verl_.types import Fields
from verl_mas.workflow.client import Message, Request

# verl reads images with qwen_vl_utils, which scales each image until its number of tokens is in this range. Then the
# processor scales the image to its own range. A token covers a square of `side` pixels.
LEAST, MOST = 4, 16_384


def seen(config: DictConfig, row: Fields) -> list[Message]:
    """Return the prompt of a row as verl's dataset does, with its images in the places of `<image>`."""
    images, messages = row.get(str(config.data.image_key)) or [], row[str(config.data.prompt_key)]
    return with_images(messages, images) if len(images) else messages


def check_images(config: DictConfig, first: FirstRows) -> Iterator[ConfigError]:
    """Report the first row of the sample whose images verl cannot read, or cannot put into the row's prompt."""
    key, prompt = str(config.data.image_key), str(config.data.prompt_key)
    for number, row in enumerate(first.sample, 1):
        images, where = row.get(key) or [], f"{first.file}, column {key!r}, row {number}"
        texts = [one["content"] for one in row[prompt] if isinstance(one.get("content"), str)]
        if len(images) and (places := "".join(texts).count(IMAGE)) != len(images):
            rule = f"verl puts the images of a row where {IMAGE} stands in its prompt"
            fix = f"write {IMAGE} into the prompt as many times as the row has images"
            yield ConfigError(f"{where}: {len(images)} images, and {places} times {IMAGE}", rule=rule, fix=fix)
            return
        if len(images) and vision_of(model := config[SECTION].model) == {}:
            rule = "verl reads them with the processor of this model, whichever agents see them"
            fix = f"set {SECTION}.model.path to a model that reads images, or leave the column out"
            value = f"{where}: images, and {SECTION}.model.path={model.path} is one of text"
            yield ConfigError(value, rule=rule, fix=fix)
            return
        for place, image in enumerate(images, 1):
            try:
                loaded(image_part(image))
            except RequestError as error:
                rule = "verl opens each image with Pillow when it reads the row, and the run ends if it fails"
                fix = "write the bytes of a PNG or JPEG file, or a path that is here, or leave the row out"
                yield ConfigError(f"{where}, image {place}: {error.value}", rule=rule, fix=fix)
                return


def check_seeing(view: View, request: Request, where: str) -> Iterator[ConfigError]:
    """Check that the policy of a request, and the policy's engine, can read the images in the request."""
    if not (count := len(image_parts(request.messages))):
        return
    model, engine = view.section("model"), str(view.section("rollout").get("name"))
    who, own = f"agent {request.agent}" if request.agent else "the prompt", f"mas.policies.{view.name}.overrides"
    setting = f"{own}.model.path" if view.spec.overrides else f"{SECTION}.model.path"
    given, reads = f"{who} gets {count} image{'s' * (count > 1)} in {where}", facts_of(engine).image_processor
    if vision_of(model) == {}:
        value = f"{given}, and its model {model.path} is one of text"
        fix = f"set {setting} to a model that reads images, or write messages without them in the workflow"
        yield ConfigError(value, rule="a model that is given images has a vision tower", fix=fix)
    elif not all(reads in str(one.get("image_processor_type", reads)) for one in _processors(model)):
        value = f"{given}, and the images of its model {model.path} are not read by a {reads}"
        rule = f"for others verl sends {engine} all tokens of an image, and {engine} expects one token per image"
        fix = f"set {setting} to a Qwen2-VL, Qwen2.5-VL or Qwen3-VL, or write messages without images"
        yield ConfigError(value, rule=rule, fix=fix)


def tokens_of(view: View, messages: Sequence[Message]) -> int:
    """Count the tokens of the images, without the placeholder that the chat template writes for each image; 0 if the
    model's files do not say how large a token is."""
    parts, model = image_parts(messages), view.section("model")
    vision = vision_of(model) or {}
    if not parts or not isinstance(side := vision.get("patch_size"), int):
        return 0
    side *= cast("int", vision.get("spatial_merge_size") or 1)
    own = [_limits(processor, side) for processor in _processors(model)]
    limits = [(LEAST, MOST), *filter(None, own)]
    images = [loaded(part)["image"] for part in parts]
    # An image at a URL is not loaded here, so its tokens are not counted.
    return sum(image_tokens(image.size, side, limits) - 1 for image in images if not isinstance(image, str))


def _processors(model: DictConfig) -> Iterator[Fields]:
    """Read the settings of a model's image processor. Releases of transformers write them into different files."""
    folder = local_folder(str(model.path))
    for name in ("preprocessor_config.json", "processor_config.json"):
        file = readable_json(folder / name) if folder else {}
        yield from (dict(part) for part in (file, file.get("image_processor")) if isinstance(part, Mapping))


def _limits(processor: Fields, side: int) -> tuple[int, int] | None:
    """Read the smallest and the largest number of tokens per image from a processor's file."""
    size = processor.get("size") or {}
    least = processor.get("min_pixels") or size.get("shortest_edge")
    most = processor.get("max_pixels") or size.get("longest_edge")
    return (least // side**2, most // side**2) if isinstance(least, int) and isinstance(most, int) else None


def image_tokens(size: tuple[int, int], side: int, limits: Sequence[tuple[int, int]]) -> int:
    """Number of squares of `side` pixels in an image that is scaled into each of the limits in turn, as Qwen's
    processors do."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    for least, most in limits:
        size = smart_resize(*size, side, least * side**2, most * side**2)
    return size[0] * size[1] // side**2
