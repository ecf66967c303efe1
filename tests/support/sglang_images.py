"""Run SGLang's own processor of Qwen's images on a prompt. The modules around it need a GPU, so they are mocked.

    python sglang_images.py FOLDER_WITH_SGLANG MODEL TOKENIZER_IN_ENGINE PROMPT_TOKENS...

A red image of 64 and a blue one of 96 pixels are in the prompt. Writes the tokens that the engine would read.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch
from PIL import Image
from transformers import AutoConfig, AutoProcessor

OWN = ("sglang.srt.multimodal", "sglang.srt.environ")
TYPES = ("Modality", "MultimodalInputFormat", "MultimodalDataItem", "MultimodalProcessorOutput")
PRELUDE = """
from __future__ import annotations
import dataclasses, enum, msgspec, torch
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import *
"""


class Mocked(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() and not name.isupper() else MagicMock(name=name)


class Around(MetaPathFinder, Loader):
    def __init__(self, folder: Path):
        self.folder = folder

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        of_sglang = name.split(".")[0] == "sglang" and not name.startswith(OWN)
        return ModuleSpec(name, self, is_package=True) if of_sglang else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Mocked(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in ("sglang", "sglang.srt"):
            module.__path__ = [str(self.folder / module.__name__.replace(".", "/"))]
        if module.__name__ == "sglang.srt.managers.schedule_batch":
            exec(PRELUDE, module.__dict__)
            for file in (self.folder / "sglang/srt/managers").glob("*.py"):
                found = [node for node in ast.parse(file.read_text()).body if getattr(node, "name", "") in TYPES]
                body = [*ast.parse("from __future__ import annotations").body, *found]
                exec(compile(ast.Module(body, []), str(file), "exec"), module.__dict__)


class Arguments(SimpleNamespace):
    def __getattr__(self, name: str) -> None:
        return None


def main(folder: str, model: str, tokenizer_in_engine: str, *prompt: str) -> None:
    sys.meta_path.insert(0, Around(Path(folder)))
    sys.path.insert(0, folder)
    from sglang.srt.managers import mm_utils
    from sglang.srt.multimodal.processors import base_processor, qwen_vl

    arguments = Arguments(
        skip_tokenizer_init=tokenizer_in_engine == "False", mm_process_config={}, tokenizer_worker_num=1,
        mm_feature_cache_size=0, mm_preprocess_cache_size_mb=0,
        mm_io_worker_num=2, disable_fast_image_processor=True, model_path=model,
    )  # fmt: skip
    base_processor.get_global_server_args, base_processor.SGL_USE_CUDA_IPC = lambda: arguments, False
    base_processor.get_mm = base_processor.get_serving = lambda: arguments  # from 0.5.19 on
    mm_utils.get_new_expanded_mm_items = list
    qwen_vl.MRotaryEmbedding = SimpleNamespace(get_rope_index=lambda **_: (torch.zeros(3, 1, 1), None))
    own = qwen_vl.QwenVLImageProcessor
    own._load_single_item = staticmethod(lambda data, *_: data)  # noqa: SLF001  # it opens files and addresses
    reader = own(AutoConfig.from_pretrained(model), arguments, AutoProcessor.from_pretrained(model), "default")
    images = [Image.new("RGB", (64, 64), "red"), Image.new("RGB", (96, 96), "blue")]
    request = SimpleNamespace(video_data=None, audio_data=None, rid="request", image_data=images)
    call = reader.process_mm_data_async(image_data=images, input_text=list(map(int, prompt)), request_obj=request)
    sys.stdout.write(" ".join(map(str, asyncio.run(asyncio.wait_for(call, 10)).input_ids)))


if __name__ == "__main__":
    main(*sys.argv[1:])
