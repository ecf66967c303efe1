"""Images of messages become files, each once."""

from __future__ import annotations

import base64
from io import BytesIO

import pytest
from PIL import Image

from verl_mas.rollout.trajectories import ImageFiles


def picture(colour="red"):
    return Image.new("RGB", (4, 3), colour)


def png(colour="red"):
    file = BytesIO()
    picture(colour).save(file, "PNG")
    return file.getvalue()


def test_an_image_is_written_once_however_often_it_is_in_a_message(tmp_path):
    images = ImageFiles(tmp_path)
    parts = [images({"type": "image", "image": picture(colour)}) for colour in ("red", "blue", "red")]
    assert parts[0] == parts[2] != parts[1]
    assert {part["file"] for part in parts} == {f"images/{path.name}" for path in (tmp_path / "images").iterdir()}
    read = Image.open(tmp_path / parts[1]["file"])
    assert (read.size, read.getpixel((0, 0))) == ((4, 3), (0, 0, 255))
    assert images.pop_bytes() == sum(path.stat().st_size for path in (tmp_path / "images").iterdir())
    assert images.pop_bytes() == 0
    # Another worker of the run.
    other = ImageFiles(tmp_path)
    assert other({"type": "image", "image": picture()}) == parts[0] and other.pop_bytes() == 0


DATA = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "bytes": png(), "image": picture()},
        {"type": "image", "image": png()},
        {"type": "image_url", "image_url": {"url": DATA}},
        {"type": "image_url", "image_url": DATA},
    ],
)
def test_the_bytes_of_an_image_file_are_kept_as_they_are(part, tmp_path):
    made = ImageFiles(tmp_path)(part)
    assert made["type"] == "image" and made["file"].endswith(".png")
    assert (tmp_path / made["file"]).read_bytes() == png()


def test_a_jpeg_keeps_its_ending_and_what_is_unknown_is_no_picture(tmp_path):
    images = ImageFiles(tmp_path)
    assert images({"type": "image", "image": b"\xff\xd8\xff rest"})["file"].endswith(".jpg")
    assert images({"type": "image", "image": b"rubbish"})["file"].endswith(".bin")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image", "image": "/data/1.png"}, {"type": "image", "url": "/data/1.png"}),
        ({"type": "image_url", "image_url": {"url": "http://x/1.png"}}, {"type": "image", "url": "http://x/1.png"}),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}, {"type": "image"}),
        ({"type": "image", "image": 5}, {"type": "image"}),
        ({"type": "image"}, {"type": "image"}),
    ],
)
def test_an_address_stays_and_what_is_not_an_image_leaves_its_type(part, expected, tmp_path):
    assert ImageFiles(tmp_path)(part) == expected
    assert not (tmp_path / "images").exists()
