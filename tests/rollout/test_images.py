"""Images in messages: loaded, sent to an engine that sees, and stored as the trainer reads them."""

import base64
import io
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.errors import RequestError
from verl_mas.rollout import images
from verl_mas.rollout.images import images_of, with_images
from verl_mas.rollout.stored import stored_rows
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.testing.tiny_vision_model import tiny_vision_model
from verl_mas.workflow import Outcome, Request, Task

RED = Image.new("RGB", (40, 30), "red")


def png(image=RED):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(content):
    return "data:image/png;base64," + base64.b64encode(content).decode()


def bomb():
    """Make a PNG whose header claims 20,000 x 20,000 pixels."""
    head = b"IHDR" + (20_000).to_bytes(4, "big") * 2 + png()[24:29]
    return png()[:12] + head + zlib.crc32(head).to_bytes(4, "big") + png()[33:]


def image_url(url):
    return {"type": "image_url", "image_url": {"url": url}}


async def loaded(*parts, reads=True):
    request = Request(agent="a", session="s", turn=0, messages=[{"role": "user", "content": [*parts]}])
    return images_of((await with_images(request, reads=reads)).messages)


async def test_an_image_is_the_same_as_an_object_bytes_a_file_or_a_data_url(tmp_path):
    (tmp_path / "red.png").write_bytes(png())
    (tmp_path / "clear.png").write_bytes(png(Image.new("RGBA", (40, 30), (255, 0, 0, 0))))
    forms = [
        {"type": "image", "image": RED},
        {"type": "image", "bytes": png()},
        {"type": "image", "image": str(tmp_path / "red.png")},
        {"type": "image", "image": f"file://{tmp_path}/red.png"},
        {"type": "image", "image": data_url(png())},
        image_url(data_url(png())),
        {"type": "image_url", "image_url": data_url(png())},
    ]
    for part in forms:
        [found] = await loaded(part)
        assert (found.mode, found.size, found.getpixel((0, 0))) == ("RGB", (40, 30), (255, 0, 0)), part
    [clear] = await loaded({"type": "image", "image": str(tmp_path / "clear.png")})
    assert clear.getpixel((0, 0)) == (255, 255, 255)


async def test_an_image_on_the_web_is_downloaded_within_limits(monkeypatch):
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(0.5 if self.path == "/slow" else 0)
            self.send_response(404 if self.path == "/none" else 200)
            self.end_headers()
            self.wfile.write(png() if self.path == "/red" else b"x" * 10_000)

    monkeypatch.setattr(images, "WEB_S", 0.25)
    monkeypatch.setattr(images, "WEB_BYTES", 5000)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        [found] = await loaded({"type": "image", "image": f"{at}/red"})
        assert found.getpixel((0, 0)) == (255, 0, 0)
        for path, says in (("slow", "Timeout"), ("none", "404"), ("long", "TooLong")):
            with pytest.raises(RequestError, match=f"the image at {at}/{path}: .*{says}"):
                await loaded({"type": "image", "image": f"{at}/{path}"})
        server.shutdown()


async def test_images_are_refused_by_their_size_before_a_pixel_is_decoded(monkeypatch):
    first, second = ({"type": "image", "bytes": png(Image.new("1", (6000, high)))} for high in (5000, 6000))
    load, decoded = PngImageFile.load, set()
    monkeypatch.setattr(PngImageFile, "load", lambda image: decoded.add(image.size) or load(image))
    with pytest.raises(RequestError, match=r"an image of 6000 x 6000 pixels\n.*at most 50,000,000 pixels"):
        await loaded(first, second)
    assert decoded == {(6000, 5000)}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image", "bytes": b"not an image"}, "cannot identify"),
        ({"type": "image", "bytes": png()[:60]}, "Pillow reads it"),
        ({"type": "image", "image": "/nowhere.png"}, "No such file"),
        ({"type": "image", "image": None}, "the image None"),
        (image_url("data:image/png;base64,%%%"), "Pillow reads it"),
        (image_url("https://example.org/a.png"), "an image_url is a data URL"),
        (image_url("file:///etc/hostname"), "an image_url is a data URL"),
        ({"type": "image", "image": Image.new("L", (401, 2))}, "at most 200 times"),
        ({"type": "image", "bytes": bomb()}, "decompression bomb"),
    ],
)
async def test_an_image_that_cannot_be_shown_is_refused_with_the_reason(part, says):
    with pytest.raises(RequestError, match=says):
        await loaded(part)


@pytest.mark.parametrize("kind", ["image", "image_url", "video", "audio"])
async def test_a_model_of_text_refuses_what_is_no_text(kind):
    with pytest.raises(RequestError, match=f"part of type {kind}\n.*reads text"):
        await loaded({"type": kind, kind: "x"}, reads=False)


class Engine:
    """The embedded engine as a client, in this process."""

    def __init__(self, folder):
        lengths = {"prompt_length": 256, "response_length": 96, "max_model_len": 512}
        config = RolloutConfig(name=ENGINE, tensor_model_parallel_size=1, dtype="float32", **lengths)
        self.config = HFModelConfig(path=str(folder))
        self.server = TransformersServer("server", config, self.config, RolloutMode.STANDALONE, 0, "cpu")
        self.ends = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **media):
        answer = await self.server.generate(prompt_ids, sampling_params, request_id, **media)
        self.ends.append(answer.token_ids[-1])
        return answer


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    threads = torch.get_num_threads()
    yield Engine(tiny_vision_model(tmp_path_factory.mktemp("seeing"), initial=0.1))
    torch.set_num_threads(threads)


@pytest.fixture
def seeing(engine, policy):
    """A policy with a vision model."""
    template, _ = policy(lambda prompt, number: None, prompt_length=256, response_length=96)
    model = Model(engine.config.tokenizer, engine.config.processor, "qwen3_vl", {})
    data = {"data": {"apply_chat_template_kwargs": {}, "mm_processor_kwargs": {}}}
    return VerlPolicy(OmegaConf.merge(template.config, data), engine, model, RLHFDataset)


def seen(colour, *sizes):
    return [{"type": "image", "image": Image.new("RGB", size, colour)} for size in sizes]


async def looks_twice(task, team):
    talk = team.a.conversation()
    first = [*seen("red", (48, 32), (1, 1)), {"type": "text", "text": "Which?"}]
    # Any token ends the first reply, so that its row goes on.
    await talk.act([{"role": "user", "content": first}], stop_token_ids=[*range(259)])
    second = [*seen("blue", (32, 64)), {"type": "text", "text": "And?"}]
    await talk.act([{"role": "user", "content": second}], max_tokens=9)
    return Outcome(answer=await team.a.act("No picture.", max_tokens=9), reward=1.0)


def test_the_rows_of_a_conversation_with_images_have_the_log_probs_of_the_trainer(seeing, engine, play):
    task = Task([{"role": "user", "content": "go"}], uid="u")
    done = play(looks_twice, seeing, task=task, faults=FaultSpec(retries=5))
    assert not done.failed, done.faults
    rows = stored_rows(done.session, {"main": seeing.model}, {"uid": "u", "session_id": 0, "global_steps": 0})
    shown = [len(row.fields["multi_modal_inputs"].get("image_grid_thw", ())) for row in rows]
    assert shown == [3, 0]
    for row in rows:
        fields = dict(row.fields)
        media = {name: fields["multi_modal_inputs"].get(name) for name in ("pixel_values", "image_grid_thw")}
        ids, positions = fields["input_ids"], fields["position_ids"]
        assert positions.shape == (4, len(ids))
        with torch.no_grad():
            logits = engine.server.batcher.model(input_ids=ids[None], position_ids=positions[:, None], **media).logits
        log_probs = torch.log_softmax(logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0]
        own = fields["response_mask"].bool()
        expected = log_probs[-len(own) :][own]
        torch.testing.assert_close(fields["rollout_log_probs"].float()[own], expected, rtol=0, atol=1e-5)


class Camera(BaseTool):
    """A tool of verl's kind that returns a picture."""

    def __init__(self):
        function = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
        super().__init__({}, OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function}))

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="here", image=[RED, None]), 0.0, {}


def test_prompts_that_differ_in_a_picture_are_different_observations(seeing, play):
    async def looks(task, team):
        for colour, say in (("red", "a"), ("red", "a"), ("blue", "a"), ("red", "b")):
            asked = [*seen(colour, (32, 32)), {"type": "text", "text": say}]
            reply = await team.a.act([{"role": "user", "content": asked}], max_tokens=2)
        return Outcome(answer=reply, reward=1.0)

    done = play(looks, seeing, faults=FaultSpec(retries=5))
    rows = stored_rows(done.session, {"main": seeing.model}, {"uid": "u", "session_id": 0, "global_steps": 0})
    one, same, *others = (row.tags.observation for row in rows)
    assert one == same and len({one, *others}) == 3


def test_images_of_tools_reach_the_engine_and_the_row(engine, policy, play):
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    client, server = policy(lambda prompt, number: [call, call, "x"][number], response_length=192)
    server.tokenizer = engine.config.tokenizer
    client.model = Model(engine.config.tokenizer, engine.config.processor, "qwen3_vl", {})

    async def looks(task, team):
        return Outcome(answer=await team.a.act(task.messages), reward=0.0)

    done = play(looks, client, agents={"a": AgentSpec(tools=["look"])}, tools=[Camera()], faults=FaultSpec(retries=0))
    assert not done.failed, done.faults
    sent = [[image.size for image in call["image_data"] or ()] for call in server.calls]
    assert sent == [[], [RED.size], [RED.size] * 2]
    (reply,) = done.session.replies
    assert reply.steps[1]["content"] == [{"type": "image", "image": RED}, {"type": "text", "text": "here"}]
    [row] = stored_rows(done.session, {"main": client.model}, {"uid": "u", "session_id": 0, "global_steps": 0})
    grid = row.fields["multi_modal_inputs"]["image_grid_thw"]
    pads = row.fields["input_ids"] == client.model.processor.image_token_id
    assert (len(grid), int(pads.sum())) == (2, int(grid.prod(dim=-1).sum()) // 4)


def test_a_reply_ends_before_a_token_that_stands_for_an_image(engine, seeing, play):
    class Samples:
        """An engine that samples the given tokens."""

        def __init__(self, *tokens):
            self.tokens = list(tokens)

        async def generate(self, request_id, *, sampling_params, **rest):
            assert {259 + 2, 259 + 3} <= {*sampling_params["stop_token_ids"]}
            return TokenOutput(token_ids=self.tokens, log_probs=[-1.0] * len(self.tokens), stop_reason="stop")

    async def acts(task, team):
        return Outcome(answer=await team.a.act("q"), reward=0.0)

    seeing.client = Samples(100, 101, 261)
    [reply] = play(acts, seeing).session.replies
    assert list(reply.generation.response_ids) == [100, 101] and len(reply.generation.log_probs) == 2
    seeing.client = Samples(261)
    done = play(acts, seeing, faults=FaultSpec(retries=0))
    assert done.failed and "begins with a token that stands for an image" in done.faults[0].cause
