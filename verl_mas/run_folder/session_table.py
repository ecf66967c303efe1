"""The Parquet file of a step's sessions. A row has a session's record as a line of JSON, and its list entry.

A reader lists the sessions from their entries alone, without reading the records. Every page of the file has a
checksum. The file is written under another name first, so a process that is killed leaves a complete file or none.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow

from verl_mas.run_folder.disk import whole_file
from verl_mas.run_folder.records import LISTED, Listed, plain

logger = logging.getLogger(__name__)
CHUNK = 2**16  # bytes to read at once
SUFFIX = ".parquet"
LEVEL = 9  # compression level of zstd
SESSION, RECORD = "session", "record"  # the columns
# Switch off options of Parquet that would only make small files larger.
SMALL = {"use_dictionary": False, "write_statistics": False, "store_schema": False}


def write_table(path: Path, lines: Sequence[bytes], entries: Sequence[Listed]) -> int:
    """Write the records of a step; return the size of the file."""
    import pyarrow.parquet

    listed = [json.dumps(asdict(entry), default=plain) for entry in entries]
    table = pyarrow.table({SESSION: listed, RECORD: lines})
    with whole_file(path) as new:
        pyarrow.parquet.write_table(
            table, new, compression="zstd", compression_level=LEVEL, write_page_checksum=True, **SMALL
        )
    return path.stat().st_size


def read_entries(path: Path) -> list[Listed]:
    """List the sessions of a file. Raises OSError or ValueError if it is damaged.

    Fields that this version does not know are ignored. Fields that are missing in the file get their defaults.
    """
    rows = map(json.loads, _column(path, SESSION))
    return [Listed(**{name: row[name] for name in LISTED if name in row}) for row in rows]


def read_lines(path: Path) -> list[bytes]:
    """Read the lines of a file of records or advantages, plain or compressed. Raises OSError or ValueError if a Parquet
    file is damaged; from another file, the lines before the damage are returned, with a warning."""
    if path.suffix == SUFFIX:
        return _column(path, RECORD)
    content = bytearray()
    with pyarrow.input_stream(str(path)) as file:
        try:
            while part := file.read(CHUNK):
                content += part
        except OSError as error:
            logger.warning(
                "%s is damaged, and the lines from number %d are skipped: %s", path, content.count(b"\n") + 1, error
            )
            del content[content.rfind(b"\n") + 1 :]
    return bytes(content).splitlines(keepends=True)


def _column(path: Path, name: str) -> list[bytes]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        values: list[bytes] = file.read([name])[name].to_pylist()
    return values
