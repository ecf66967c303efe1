#!/bin/sh
# Creates .venv-hubs: the libraries of worlds, beside what .venv has. Some of them pin older versions of what verl-mas has.
set -eu
cd "$(dirname "$0")/.."
"${PYTHON:-python3}" -m venv .venv-hubs
base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$base')" > "$(.venv-hubs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
# Every requirement is in the file.
.venv-hubs/bin/python -m pip install --quiet --no-deps -r versions/hubs.txt
