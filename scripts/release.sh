#!/usr/bin/env bash
# Builds the sdist and the wheel of the last commit in dist/, and checks them as a user of each named Python would:
#
#     scripts/release.sh python3.10 python3.11 python3.12
#
# Two clones give the same bytes, PyPI takes the metadata, the wheel is small, and in an environment of its own it trains
# the demo for three steps. build/sbom.json lists what is in the last environment (CycloneDX).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
MOST_BYTES=1500000

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' verl_mas/__init__.py)
grep -q "^## $version\\b" CHANGELOG.md || { echo "CHANGELOG.md has no section of $version"; exit 1; }
case "${GITHUB_REF_NAME:-v$version}" in v"$version") ;; *) echo "the tag is not v$version"; exit 1 ;; esac

"$1" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet build twine cyclonedx-bom
for copy in one two; do
    git clone --quiet . "$work/$copy"
    "$work/tools/bin/python" -m build --outdir "$work/dist-$copy" "$work/$copy" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
done
diff -r "$work/dist-one" "$work/dist-two" && echo "two clones give the same files"
rm -rf dist && cp -r "$work/dist-one" dist
"$work/tools/bin/twine" check --strict dist/*
bytes=$("$1" -c 'import sys, zipfile
print(sum(one.compress_size for one in zipfile.ZipFile(sys.argv[1]).infolist() if not one.filename.startswith("verl_mas/gym/")))' dist/*.whl)
echo "$bytes bytes without verl_mas/gym"
[ "$bytes" -le $MOST_BYTES ] || { echo "more than $MOST_BYTES"; exit 1; }

for python; do
    name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    env=$work/$name
    "$python" -m venv "$env"
    constraint="--constraint $root/versions/constraints.txt"
    "$env/bin/python" -m pip install --quiet $constraint torch ${TORCH_INDEX:-}
    "$env/bin/python" -m pip install --quiet $constraint "$root"/dist/*.whl
    mkdir "$work/run-$name" && cd "$work/run-$name"
    steps="trainer.total_training_steps=3 trainer.test_freq=3 trainer.save_freq=3"
    "$env/bin/verl-mas" --version
    "$env/bin/verl-mas" demo $steps > log.txt 2>&1 || { tail -50 log.txt; exit 1; }
    "$env/bin/verl-mas" data split_clues --out runs/split_clues --noise 0.6 --warm-up steps=20 > data.txt
    "$env/bin/verl-mas" check +platform=cpu +recipe=split_clues/laptop $steps
    "$env/bin/verl-mas" view runs/demo/checkpoints --out view.html
    cd "$root"
    echo "Python $name: the demo trained for three steps"
done
mkdir -p build
"$work/tools/bin/cyclonedx-py" environment "$env/bin/python" --pyproject pyproject.toml --output-file build/sbom.json
sha256sum dist/*
