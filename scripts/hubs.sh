#!/bin/sh
# Creates .venv-hubs, the libraries of worlds beside what .venv has, and .venv-openenv, a server of OpenEnv. Some of them pin older
# versions of what verl-mas has.
set -eu
cd "$(dirname "$0")/.."
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
for name in hubs openenv; do
    "${PYTHON:-python3}" -m venv ".venv-$name"
    # Every requirement is in the file.
    ".venv-$name/bin/python" -m pip install --quiet --no-deps -r "versions/$name.txt"
done
echo "import site; site.addsitedir('$(packages "$PWD/.venv")')" > "$(packages .venv-hubs)/verl-mas.pth"
