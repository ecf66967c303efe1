"""`run.yaml`: a record of every start of a run.

format: 1
attempts:               every start in this folder, the last one at the end
- started: 2026-01-31T12:00:00+00:00
  resumed_from: 20      the step of the checkpoint; null for a start at the beginning
  command, folder       the command line, and the working directory
  versions, git, seeds, host, cluster
  changed:              settings that differ from the previous start: name -> [before, now]
  ended: {at, step, by} by: finished, or the error; missing while the run trains, and after a kill
config: ...             the resolved configuration of the last start

Keys and passwords are removed (`run_folder.secrets`).
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import yaml

from verl_mas.errors import DataError
from verl_mas.run_folder.disk import recording, write_whole
from verl_mas.run_folder.secrets import without_secrets

FILE = "run.yaml"
FORMAT = 1  # increase it if earlier readers would misread the file
CONFIG, ATTEMPTS, CHANGED, ENDED = "config", "attempts", "changed", "ended"
Plain: TypeAlias = dict[str, object]
# In the trainer's process, only verl's logger has a handler.
logger = logging.getLogger(f"verl.{__name__}")


class AboutFile:
    """Writes `run.yaml` in the trainer's process."""

    def __init__(self, folder: Path, attempt: Mapping[str, object], config: object):
        """Add a start of the run. `config`: its resolved configuration, as plain data."""
        self._path = folder / FILE
        try:
            before = read_about(folder)
        except DataError as error:
            # A damaged file does not stop the training. It is kept under another name.
            before, aside = {}, self._path.with_name(f"{FILE}.damaged")
            self._path.replace(aside)
            logger.warning("%s is replaced, and kept as %s: %s", self._path, aside.name, error.value)
        self._config = without_secrets(config)
        self._attempt: Plain = {key: without_secrets(value, key) for key, value in attempt.items()}
        earlier = before.get(CONFIG)
        if isinstance(earlier, dict) and (changed := dict(changes(earlier, self._config))):
            self._attempt[CHANGED] = changed
        self._earlier = attempts(before)
        self._write()

    def end(self, ended: Mapping[str, object]) -> None:
        self._attempt[ENDED] = without_secrets(dict(ended))
        self._write()

    def _write(self) -> None:
        content = {"format": FORMAT, ATTEMPTS: [*self._earlier, self._attempt], CONFIG: self._config}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        with recording(self._path, "its settings"):
            write_whole(self._path, text)


def attempts(content: Mapping[str, object]) -> list[Plain]:
    """Return the starts of a run from the result of `read_about`."""
    starts = content.get(ATTEMPTS)
    return [one for one in starts if isinstance(one, dict)] if isinstance(starts, list) else []


def read_about(folder: Path) -> Plain:
    """Read `run.yaml`; empty if the file is missing, as after an evaluation."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _refused(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise _refused(f"{path} holds no mapping")
    if content.get("format") != FORMAT:
        rule = f"this version of verl-mas reads format {FORMAT}"
        fix = "use the version of verl-mas that wrote it, or a later one"
        raise DataError(f"{path}: format {content.get('format')}", rule=rule, fix=fix)
    return content


def _refused(value: str) -> DataError:
    rule = "it describes a run, as the trainer writes it"
    return DataError(value, rule=rule, fix="restore it, or remove it: metrics and sessions can be read without it")


def changes(before: object, now: object, name: str = "") -> Iterator[tuple[str, list[object]]]:
    """Yield the settings that differ between two configurations, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from changes(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
    elif before != now:
        yield name, [before, now]
