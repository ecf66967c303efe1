"""Every name of vLLM and SGLang that we use is in the contract, and the wheels of its versions have these names
(nightly)."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import engine_releases
import lock_overrides
import pytest
from engine_names import missing, names
from engine_sources import forget
from packaging.version import Version
from verl_contract import sources
from verl_contract.sources import find

from verl_mas.engines import facts
from verl_mas.engines.facts import Contract, contracts
from verl_mas.engines.kinds.sglang import IMAGES_MB

ENGINES = Path(facts.__file__).parent
# File -> a package, and the expressions in the file that are objects of this package.
OBJECTS = {
    "kinds/vllm.py": ("vllm", {"self.engine", "self._engine", "self.engine.output_processor"}),
    "vllm_extension.py": ("vllm", {"self.model_runner", "self.model_runner.lora_manager", "manager"}),
    str(lock_overrides.sources()["verl_mas_vllm_cpu.worker"]): (
        "vllm",
        {"model_runner", "module", "module.quant_method"},
    ),
    "kinds/sglang.py": ("sglang", {"self.tokenizer_manager", "self._manager", "obj", "flushed"}),
}
OWN = {"ids"}  # attributes of `AdapterEngine`


def listed(package: str) -> set[str]:
    known = names()[package]
    return {name for table in [known.used, *known.needs.values()] for agents in table.values() for name in agents}


@pytest.mark.parametrize("file", OBJECTS)
def test_every_attribute_of_an_engine_that_we_use_is_in_the_contract(file):
    package, objects = OBJECTS[file]
    nodes = [node for node in ast.walk(ast.parse((ENGINES / file).read_text())) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in nodes if ast.unparse(node.value) in objects}
    assert used and used - listed(package) - OWN == set()


def test_every_name_that_we_import_from_an_engine_is_in_the_contract():
    texts = [path.read_text() for path in lock_overrides.sources().values()]
    files = [ast.parse(text) for text in texts if "from vllm." in text]
    nodes = [node for tree in files for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert len(files) >= 3
    for package in contracts():
        found = {name.name for node in nodes if str(node.module).startswith(f"{package}.") for name in node.names}
        owners = {owner.rpartition(":")[2] for owner in names()[package].used}
        assert found - listed(package) - owners == set()


SOURCE = """
class Base:
    def __init__(self):
        self.state = {}
class Engine(Base):
    async def abort(self, rid, *, internal=False): ...
class Request:
    name: str
    tags: list = None
"""
NAMES = {
    "an_engine.parts:Engine": {"abort": ["rid", "internal"], "state": None},
    "an_engine.parts": {"Request": ["name"]},
}
AN_ENGINE = Contract("an_engine", ("1.0", "1.4"), {"loading": "1.2"})


@pytest.fixture
def install(tmp_path, monkeypatch) -> Iterator:
    """Return a function that installs an engine with the given source and version."""
    monkeypatch.setattr(sources, "PACKAGES", ("an_engine",))
    monkeypatch.syspath_prepend(tmp_path)

    def install(source: str, version: str = "1.0") -> None:
        forget()
        (tmp_path / "an_engine").mkdir(exist_ok=True)
        (tmp_path / "an_engine" / "__init__.py").touch()
        (tmp_path / "an_engine" / "parts.py").write_text(source)
        monkeypatch.setattr(facts, "installed_version", lambda package: version)

    yield install
    forget()


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("", "", None),
        ("internal=False", "internal=False, more=0", None),
        ("def abort(", "def stop(", "Engine.abort is missing"),
        (", *, internal=False", "", "Engine.abort does not take internal"),
        ("rid, *", "rid, reason, *", "Engine.abort also needs reason"),
        ("self.state", "self.states", "Engine.state is missing"),
        ("name: str", "title: str", "parts:Request does not take name"),
        ("tags: list = None", "tags: list", "parts:Request also needs tags"),
    ],
)
def test_an_engine_without_what_we_use_differs(install, old, new, seen):
    install(SOURCE.replace(old, new))
    found = list(missing(NAMES))
    assert found == [] if seen is None else [seen in difference for difference in found] == [True]


@pytest.mark.parametrize(
    ("version", "standing"),
    [
        ("0.9", "not compared, as 1.0 to 1.4"),
        ("1.0+cpu", "the version that verl pins"),
        ("1.4+cpu", "newer than verl pins"),
        ("1.5", "not compared, as 1.0 to 1.4"),
    ],
)
def test_the_installed_version_is_placed_beside_those_that_were_compared(install, version, standing):
    install(SOURCE, version)
    assert AN_ENGINE.standing.startswith(standing)
    assert (AN_ENGINE.untested == version) is standing.startswith("not compared")


def test_a_feature_that_the_installed_engine_lacks_names_the_version_that_has_it(install):
    assert "from 1.2 on, and this is 1.0" in AN_ENGINE.lacks["loading"], "not installed: what verl pins"
    install(SOURCE, "1.1")
    assert "from 1.2 on, and this is 1.1" in AN_ENGINE.lacks["loading"]
    install(SOURCE, "1.2")
    assert AN_ENGINE.lacks == {}


def test_an_engine_whose_arguments_are_not_a_dataclass_cannot_be_started(install):
    known = replace(AN_ENGINE, dataclasses=["an_engine.parts:Request"])
    install(f"{SOURCE}\nRequest = defstruct('Request', [])\n")
    assert "the fields of an_engine.parts:Request" in known.unstartable and known.standing.startswith("not usable")
    install(SOURCE.replace("class Request", "@dataclasses.dataclass\nclass Request"))
    assert known.unstartable == ""


VERSIONS = [(name, version) for name, known in contracts().items() for version in known.tested]


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Iterator:
    """The Python sources of an engine's release on PyPI, in place of an installed one."""

    def wheel(package: str, version: str) -> None:
        engine_releases.download(package, version, tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield wheel
    forget()


@pytest.mark.nightly
@pytest.mark.parametrize(("package", "version"), VERSIONS)
def test_a_release_that_we_name_has_what_verl_and_we_use_and_each_feature_from_its_version_on(wheel, package, version):
    wheel(package, version)
    known = contracts()[package]
    assert engine_releases.differences(package) == [] and not known.unstartable
    for feature, since in known.needs.items():
        assert any(missing(names()[package].needs[feature])) is (Version(version) < Version(since)), feature


@pytest.mark.nightly
def test_what_verl_asks_of_sglang_is_found_missing_in_the_first_release_that_it_cannot_start(wheel):
    wheel("sglang", "0.5.20")
    (difference,) = engine_releases.differences("sglang")
    assert difference.endswith("ServerArgs is not a dataclass")
    assert "sglang.srt.server_args:ServerArgs" in contracts()["sglang"].unstartable


# Name in vLLM -> conditions in its source for using FlashInfer's kernels, or for not using them.
NVCC = {
    "vllm.platforms.cuda:_get_backend_priorities": (
        "elif device_capability.major == 10:\n        return [AttentionBackendEnum.FLASHINFER, ",
        "else:\n        return [AttentionBackendEnum.FLASH_ATTN, ",
    ),
    "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.__init__": (
        "logprobs_mode not in ('processed_logits', 'processed_logprobs') and flashinfer_sampler_supported()",
    ),
    "vllm.v1.worker.gpu.sample.sampler:Sampler.sample": (
        "self.use_flashinfer and (not (top_k is None and top_p is None or (return_logprobs and self.logprobs_mode == "
        "'processed_logprobs')",
    ),
    "vllm.distributed.device_communicators.flashinfer_all_reduce:_create_workspace": ("except Exception as e:",),
}


@pytest.mark.nightly
def test_vllm_takes_flashinfers_kernels_where_the_check_asks_for_nvcc(wheel):
    wheel("vllm", contracts()["vllm"].tested[0])
    assert {path: [text in text_of(path) for text in texts] for path, texts in NVCC.items()} == {
        path: [True] * len(texts) for path, texts in NVCC.items()
    }


def text_of(path: str) -> str:
    definition = find(path)
    assert definition, path
    return ast.unparse(definition.node)


@pytest.mark.nightly
@pytest.mark.parametrize("version", contracts()["sglang"].tested)
def test_sglang_keeps_images_across_new_weights(wheel, version):
    wheel("sglang", version)
    cache = find("sglang.srt.managers.mm_utils:init_mm_embedding_cache")
    assert cache and "embedding_cache.clear" not in sources.source_of(cache.module)
    assert "embedding" not in text_of("sglang.srt.managers.scheduler:Scheduler.flush_cache")
    assert IMAGES_MB in text_of("sglang.srt.environ:Envs")
