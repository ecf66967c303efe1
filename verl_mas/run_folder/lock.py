"""Lock of a run's folder, because two runs would overwrite each other's checkpoints."""

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.errors import ConfigError

LOCK = ".lock"
# After a kill, Ray needs some seconds to end the trainer. The next start waits for it.
WAIT_S, PAUSE_S = 5.0, 0.1
# Errors of a taken lock, and of a file system without locks.
TAKEN = {errno.EAGAIN, errno.EACCES}
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
logger = logging.getLogger(__name__)


class RunLock:
    """A lock that is held until the process ends. It is released even if `kill -9` ends the process."""

    def __init__(self, folder: Path):
        """Take the lock. Raises ConfigError if another process has the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / LOCK
        self._file = self.path.open("a+")
        if not _lock(self._file.fileno(), fcntl.LOCK_EX):
            raise _in_use(self.path)
        # A forked child, such as a worker of a data loader, may outlive this process and would keep the lock.
        os.register_at_fork(after_in_child=self._file.close)
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()}, host {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def check_lock(config: DictConfig) -> Iterator[ConfigError]:
    """Check that no other run uses the folder. An evaluation writes no checkpoints, so it may run at the same time."""
    path = Path(config.trainer.default_local_dir) / LOCK
    if config.trainer.val_only or not path.exists():
        return
    with path.open() as file:
        if not _lock(file.fileno(), fcntl.LOCK_SH):
            yield _in_use(path)


def _lock(descriptor: int, kind: int) -> bool:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                logger.warning("the file system has no locks: a second run in the same folder would not be noticed")
                return True
            if error.errno not in TAKEN:
                raise
        if time.monotonic() > end:
            return False
        time.sleep(PAUSE_S)


def _in_use(path: Path) -> ConfigError:
    value = f"{path.parent.absolute()} is in use by {path.read_text() or 'a run that is starting'}"
    rule = "a run has a folder of its own; two would overwrite each other's checkpoints"
    return ConfigError(value, rule=rule, fix="set another trainer.default_local_dir, or wait until that run has ended")
