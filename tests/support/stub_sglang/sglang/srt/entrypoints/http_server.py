"""The HTTP interface, as far as verl's adapter calls it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import (
    LoadLoRAAdapterFromTensorsReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UnloadLoRAAdapterReqInput,
    UpdateWeightsFromTensorReqInput,
)
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.server_args import ServerArgs

__all__ = ["Engine", "ServerArgs", "app", "launch_server", "set_global_state"]
app = FastAPI()


@dataclass
class _GlobalState:
    tokenizer_manager: TokenizerManager
    template_manager: object
    scheduler_info: object


def set_global_state(state: _GlobalState) -> None:
    app.state.engine = state.tokenizer_manager


def launch_server(server_args: ServerArgs) -> None: ...


# FastAPI reads annotations, and a function's own are not found while they are texts.
async def _release(request: Request) -> None:
    await app.state.engine.release_memory_occupation(ReleaseMemoryOccupationReqInput((await request.json())["tags"]))


async def _resume(request: Request) -> None:
    await app.state.engine.resume_memory_occupation(ResumeMemoryOccupationReqInput((await request.json())["tags"]))


async def _update(request: Request) -> dict[str, Any]:
    body = await request.json()
    tensors = [base64.b64decode(part) for part in body["serialized_named_tensors"]]
    await app.state.engine.update_weights_from_tensor(
        UpdateWeightsFromTensorReqInput(tensors, body["load_format"], body["flush_cache"])
    )
    return {"success": True, "message": ""}


async def _models() -> dict[str, Any]:
    return {"data": [{"id": name} for name in ("the base", *app.state.engine.lora_registry)]}


async def _load_lora(request: Request) -> dict[str, Any]:
    body = await request.json()
    tensors = [base64.b64decode(part) for part in body["serialized_named_tensors"]]
    await app.state.engine.load_lora_adapter_from_tensors(
        LoadLoRAAdapterFromTensorsReqInput(body["lora_name"], body["config_dict"], tensors)
    )
    return {"success": True}


async def _unload_lora(request: Request) -> dict[str, Any]:
    await app.state.engine.unload_lora_adapter(UnloadLoRAAdapterReqInput((await request.json())["lora_name"]))
    return {"success": True}


async def _flush() -> Response:
    return Response(status_code=200 if (await app.state.engine.flush_cache()).success else 400)


app.add_api_route("/release_memory_occupation", _release, methods=["POST"])
app.add_api_route("/resume_memory_occupation", _resume, methods=["POST"])
app.add_api_route("/update_weights_from_tensor", _update, methods=["POST"])
app.add_api_route("/flush_cache", _flush, methods=["GET"])
app.add_api_route("/v1/models", _models, methods=["GET"])
app.add_api_route("/load_lora_adapter_from_tensors", _load_lora, methods=["POST"])
app.add_api_route("/unload_lora_adapter", _unload_lora, methods=["POST"])
