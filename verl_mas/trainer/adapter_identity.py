"""What of its bases and adapters a run must have in common with the checkpoint that it resumes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import ListConfig

from verl_mas.config.adapters import bases
from verl_mas.config.run import Run, View
from verl_mas.errors import ConfigError
from verl_mas.run_folder.checkpoints import Checkpoint

# The keys in `run.json`.
ADAPTERS, BASES = "adapters", "bases"
# Of the end of each file of weights.
BYTES = 1 << 16


def adapter_identity(run: Run) -> dict[str, dict[str, object]]:
    """The adapters of a run, and the weights of their bases, of which no checkpoint has a copy. Empty without any."""
    if not bases(run.mas):
        return {}
    paths = {base: Path(str(run.view(base).value("model.path"))) for base in bases(run.mas)}
    return {
        ADAPTERS: {name: _adapter(run.view(name)) for name, spec in run.mas.policies.items() if spec.adapter_of},
        BASES: {base: {"model": path.name, "fingerprint": fingerprint(path)} for base, path in paths.items()},
    }


def _adapter(view: View) -> dict[str, object]:
    values = {key: view.value(f"model.{key}") for key in ("lora_rank", "lora_alpha", "target_modules")}
    if excluded := view.get("model.exclude_modules"):
        values["exclude_modules"] = excluded
    plain = {key: list(value) if isinstance(value, ListConfig) else value for key, value in values.items()}
    return {"adapter_of": view.spec.adapter_of, **plain}


def fingerprint(model: Path) -> str | None:
    """Of the configuration and the weights in a folder, of which it reads little; None for a name on the hub."""
    files = sorted([*model.glob("*.safetensors"), *model.glob("*.bin")]) if model.is_dir() else []
    if not files:
        return None
    config = json.loads((model / "config.json").read_bytes())
    # Without what changes when the same model is saved again.
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    found = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(0, size - BYTES))
            found.update(f"{file.name} {size} ".encode() + opened.read())
    return found.hexdigest()[:16]


def other_adapters(checkpoint: Checkpoint, run: Mapping[str, object]) -> Iterator[ConfigError]:
    """How the adapters and the bases of a run differ from those of a checkpoint, which it then cannot resume from."""
    before, now = _read(checkpoint.run, ADAPTERS), _read(run, ADAPTERS)
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            again = f", or from its weights with mas.policies.{name}.overrides.model.lora_adapter_path="
            yield ConfigError(
                f"{checkpoint.folder} has policy {name} with {_text(before.get(name))}, and this run with "
                f"{_text(now.get(name))}",
                rule="a run resumes with the adapters of its checkpoint: their base, rank, alpha and modules",
                fix="have the same as in that run; or start a new run with trainer.resume_mode=disable"
                + (f"{again}{checkpoint.folder / name}" if name in before else ""),
            )
    before, now = _read(checkpoint.run, BASES), _read(run, BASES)
    for name in (name for name in now if name in before and not _same(before[name], now[name])):
        yield ConfigError(
            f"the adapters in {checkpoint.folder} were trained on {_text(before[name])}, and the base {name} of this "
            f"run is {_text(now[name])}",
            rule="adapters are trained and served on the weights of one base, of which no checkpoint has a copy",
            fix=f"set model.path of policy {name} to the model of that run, or trainer.resume_mode=disable",
        )


def _read(run: Mapping[str, object], key: str) -> dict[str, dict[str, object]]:
    found = run.get(key) or {}
    assert isinstance(found, dict)
    return found


def _same(before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    known = [key for key in ("model", "fingerprint") if before[key] is not None and now[key] is not None]
    return all(before[key] == now[key] for key in known)


def _text(found: Mapping[str, object] | None) -> str:
    return ", ".join(f"{key}={value}" for key, value in found.items()) if found else "no adapter"
