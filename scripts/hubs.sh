#!/bin/sh
# Creates .venv-hubs and .venv-loggers, the libraries of worlds and the packages of loggers beside what .venv has, and .venv-openenv,
# a server of OpenEnv. Some of them pin older versions of what verl-mas has.
set -eu
cd "$(dirname "$0")/.."
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
for name in hubs loggers openenv; do
    "${PYTHON:-python3}" -m venv ".venv-$name"
    # Every requirement is in the file.
    ".venv-$name/bin/python" -m pip install --quiet --no-deps -r "versions/$name.txt"
done
for name in hubs loggers; do
    echo "import site; site.addsitedir('$(packages "$PWD/.venv")')" > "$(packages ".venv-$name")/verl-mas.pth"
done
