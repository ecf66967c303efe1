"""Converts rows of a user's own file to verl's format (a prompt from a template, the ground truth, and kept columns),
and reads rows in this format as verl's dataset does."""

import csv
import io
import json
import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_mas.config.registry import nearest
from verl_mas.environment.retrieval.files import Row, read_rows
from verl_mas.errors import DataError
from verl_mas.verl_.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, RAW_PROMPT, REWARD_MODEL
from verl_mas.verl_.types import Fields

# verl's default columns (data.prompt_key and data.image_key), and the placeholder of an image in a prompt.
PROMPT, IMAGES, IMAGE = "prompt", "images", "<image>"
CSV = {".csv": ",", ".tsv": "\t"}
FORMATS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet", ".arrow")


@dataclass(frozen=True)
class RowFormat:
    """Roles of columns. `prompt`, `source` and `system` are templates, in which braces name columns."""

    prompt: str
    answer: str | None
    source: str
    split: str
    system: str | None = None
    images: str | None = None
    keep: Sequence[str] = ()


def read(path: Path) -> Iterator[Row]:
    """Read the rows of a file whose name ends with one of FORMATS."""
    if not path.name.endswith(FORMATS) or not path.is_file():
        rule = f"the file must exist and end in {', '.join(FORMATS)}"
        raise DataError(f"file {path}", rule=rule, fix="give another path")
    if path.suffix == ".json":
        return _json(path)
    return _csv(path, CSV[path.suffix]) if path.suffix in CSV else read_rows(path)


def _json(path: Path) -> Iterator[Row]:
    """Read a list of objects, or one object per line, which verl also accepts in a .json file."""
    content, rule = path.read_bytes(), "a .json file holds a list of objects, or one object per line"
    try:
        rows = json.loads(content) if content.lstrip().startswith(b"[") else list(read_rows(path))
    except ValueError as error:
        raise DataError(f"{path}: {error}", rule=rule, fix="correct it") from error
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: no list of objects", rule=rule, fix="correct it")
    if len(rows) == 1 and not content.lstrip().startswith(b"["):
        raise DataError(f"{path}: one object", rule=rule, fix="if it is the only row, write [ and ] around it")
    yield from rows


def _csv(path: Path, delimiter: str) -> Iterator[Row]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        try:
            if (names := reader.fieldnames or ()) and len({*names}) < len(names):
                raise DataError(f"{path}: the header is {names}", rule="names of columns differ", fix="rename one")
            for row in reader:
                if None in row or None in row.values():
                    cells = sum(len(cell) if isinstance(cell, list) else cell is not None for cell in row.values())
                    rule = f"every row has the {len(names)} cells of the header"
                    fix = "correct the line; put a cell that contains the separator into double quotes"
                    raise DataError(f"{path}, line {reader.line_num} has {cells} cells", rule=rule, fix=fix)
                yield row
        except (csv.Error, UnicodeDecodeError) as error:
            value = f"{path}, line {reader.line_num}: {error}"
            raise DataError(value, rule="the file is CSV in UTF-8", fix="correct the line") from error


def as_dataset(row: Row, where: str, prompt_key: str = PROMPT) -> Fields:
    """Convert a row of training data as verl's dataset does, with the messages as `raw_prompt`. `where` names the row
    in errors."""
    if prompt_key not in row:
        rule = f"its column {prompt_key} has the messages (data.prompt_key of the run)"
        raise DataError(f"{where} has no {prompt_key}", rule=rule, fix=nearest(prompt_key, list(row)))
    messages, fix = row[prompt_key], "write such rows with `verl-mas data rows`"
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        rule = "it is a list of messages with role and content"
        raise DataError(f"{where}: {prompt_key}={messages!r:.80}", rule=rule, fix=fix)
    for name in (REWARD_MODEL, EXTRA_INFO):
        if not isinstance(row.get(name) or {}, dict):
            raise DataError(f"{where}: {name}={row[name]!r:.80}", rule="it is an object", fix=fix)
    extra, images = row.get(EXTRA_INFO) or {}, list(row.get(IMAGES) or ())
    given = [{name: value for name, value in one.items() if value is not None} for one in messages]
    if images and (named := str(messages).count(IMAGE)) != len(images):
        value, rule = f"{where}: {named} times {IMAGE}, {len(images)} images", f"{IMAGE} stands where an image is"
        raise DataError(value, rule=rule, fix=fix)
    return {
        **row,
        RAW_PROMPT: with_images(given, images) if images else given,
        EXTRA_INFO: extra,
        "index": extra.get("index", 0),
        "tools_kwargs": extra.get("tools_kwargs", {}),
        "interaction_kwargs": extra.get("interaction_kwargs", {}),
    }


def with_images(messages: Sequence[Fields], images: Iterable[object]) -> list[Fields]:
    """Replace `<image>` by the images, as verl's dataset does."""
    left = iter(images)
    return [{**message, "content": _placed(message["content"], left)} for message in messages]


def _placed(content: object, left: Iterator[object]) -> object:
    if not isinstance(content, str):
        return content
    texts = [text for text in re.split(f"({IMAGE})", content) if text]
    return [image_part(next(left)) if text == IMAGE else {"type": "text", "text": text} for text in texts]


def image_part(image: object) -> Fields:
    return {"type": "image", **(image if isinstance(image, dict) else {"image": image})}


def convert(rows: Iterable[Row], form: RowFormat, folder: Path) -> list[Row]:
    """Convert rows for verl. `folder`: the base of relative paths of images."""
    converted: list[Row] = []
    if taken := {"split", "index"} & {*form.keep}:
        rule = "extra_info has one of that name for verl: what --split says, and the number of the row"
        raise DataError(f"--keep {min(taken)}", rule=rule, fix="rename the column")
    for number, row in enumerate(rows, 1):
        place = f"row {number}"
        images = _images(row, form, folder, place)
        kept = {name: _value(row, name, place) for name in form.keep}
        columns = {
            DATA_SOURCE: fill(form.source, row, place),
            PROMPT: _messages(row, form, place, len(images)),
            REWARD_MODEL: {"style": "rule", GROUND_TRUTH: _answer(row, form, place)},
            EXTRA_INFO: {"split": form.split, "index": number - 1} | kept,
        }
        converted.append(columns | ({IMAGES: images} if form.images else {}))
    if not converted:
        raise DataError("no rows", rule="a file of training or test data has at least one row", fix="give another file")
    return converted


def fill(template: str, row: Row, place: str) -> str:
    """Fill a template with the row's values in place of the columns in braces."""
    return "".join(text + ("" if name is None else _text(row, name, place)) for text, name in _parts(template))


def _text(row: Row, name: str, place: str) -> str:
    if isinstance(value := _value(row, name, place), list | dict):
        rule, fix = "a column between texts is a text or a number", f"use --template '{{{name}}}' for messages"
        raise DataError(f"{place}: {name} is a {type(value).__name__}", rule=rule, fix=fix)
    return str(value)


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Split a template into texts, each with the column after it (None at the end)."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _wrong_template(template, str(error)) from error
    for _, name, form, conversion in parts:
        if name == "" or form or conversion:
            raise _wrong_template(template, "braces without a column" if name == "" else "a format in braces")
    return [(text, name) for text, name, _, _ in parts]


def _wrong_template(template: str, problem: str) -> DataError:
    rule = "a template names columns in braces, as in 'Question: {question}'"
    return DataError(f"template {template!r}: {problem}", rule=rule, fix="write {{ and }} for braces in the text")


def _value(row: Row, name: str, place: str) -> object:
    if name not in row:
        raise DataError(f"{place} has no column {name!r}", rule="every row has it", fix=nearest(name, list(row)))
    value = row[name]
    blank = isinstance(value, str) and not value.strip()
    if blank or value in (None, []) or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{place}: {name} is empty", rule="every row has a value", fix="fill it in, or remove the row")
    return value


def _messages(row: Row, form: RowFormat, place: str, images: int) -> list[dict[str, str]]:
    system = [] if form.system is None else [{"role": "system", "content": fill(form.system, row, place)}]
    [*others, (text, name)] = _parts(form.prompt) or [("", None)]
    columns = {name, *(column for _, column in others)} - {None}
    if not columns:
        raise _wrong_template(form.prompt, "it names no column, so all prompts would be equal")
    if form.answer in columns:
        value, fix = f"template {form.prompt!r} with the answers of {form.answer}", "leave one of them out"
        raise DataError(value, rule="a prompt does not hold its answer", fix=fix)
    whole = _value(row, name, place) if name and not others and not text else None
    if isinstance(whole, list):
        return [*system, *_given(whole, f"{place}: {name}")]
    content = fill(form.prompt, row, place)
    if (named := content.count(IMAGE)) != images:
        value = f"{place}: {named} times {IMAGE} in the prompt, {images} images"
        fix = f"write {IMAGE} into the template, or into its columns, as many times as the row has images"
        raise DataError(value, rule=f"{IMAGE} stands where an image is", fix=fix)
    return [*system, {"role": "user", "content": content}]


def _given(messages: Sequence[object], what: str) -> list[dict[str, str]]:
    """Read a column that already has a conversation."""
    texts = []
    for message in messages:
        if not (isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))):
            value = f"{what} has the message {str(message)[:80]}"
            rule = "a message is an object with the texts `role` and `content`"
            raise DataError(value, rule=rule, fix="correct the row, or build the prompt with --template")
        texts.append({"role": message["role"], "content": message["content"]})
    return texts


def _answer(row: Row, form: RowFormat, place: str) -> object:
    """Read the ground truth of a row. A number becomes a string, so that the column has one type."""
    if form.answer is None:
        return ""
    value = _value(row, form.answer, place)
    if isinstance(value, list) and not any(map(str, value)):
        raise DataError(f"{place}: {form.answer}={value}", rule="an answer is not empty", fix="fill it in")
    return str(value) if isinstance(value, int | float) else value


def _images(row: Row, form: RowFormat, folder: Path, place: str) -> list[dict[str, bytes]]:
    """Read the image files, so that the data set needs no other file."""
    if form.images is None:
        return []
    from PIL import Image

    paths = _value(row, form.images, place)
    contents: list[dict[str, bytes]] = []
    for path in paths if isinstance(paths, list) else [paths]:
        if isinstance(path, Mapping) and path.get("bytes"):
            contents.append({"bytes": path["bytes"]})
        elif isinstance(path, str) and (folder / path).is_file():
            contents.append({"bytes": (folder / path).read_bytes()})
        else:
            value = f"{place}: image {str(path)[:80]!r} is no file in {folder}"
            rule = f"{form.images} holds paths of images, relative to the folder of the rows"
            raise DataError(value, rule=rule, fix="correct the path")
        try:
            Image.open(io.BytesIO(contents[-1]["bytes"])).verify()
        except (OSError, SyntaxError) as error:  # SyntaxError: a broken PNG
            rule = f"{form.images} holds images that Pillow reads"
            raise DataError(f"{place}: {str(path)[:80]!r} is no image", rule=rule, fix="correct the file") from error
    return contents
