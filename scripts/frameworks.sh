#!/bin/sh
# Creates the environments of the agent frameworks of others, and npm packages for Node: clients, and coding harnesses.
set -eu
cd "$(dirname "$0")/.."
for name in frameworks frameworks-openai-2 frameworks-openai-0; do
    "${PYTHON:-python3}" -m venv ".venv-$name"
    # Every requirement is in the file.
    ".venv-$name/bin/python" -m pip install --quiet --no-deps -r "versions/$name.txt"
done
PATH="$PWD/.venv-frameworks/bin:$PATH" npm ci --silent --prefix versions/npm
# Their binaries are optional dependencies, which no lock file names for every machine.
PATH="$PWD/.venv-frameworks/bin:$PATH" npm install --silent --no-package-lock --prefix versions/harnesses
# Node looks for packages beside the programs.
ln -sfn ../../../versions/npm/node_modules tests/gateway/programs/node_modules
