#!/bin/sh
# Packs what a GPU machine without a network needs: scripts/bundle.sh FOLDER [VERSIONS]
# The wheels of every version in VERSIONS (default: versions/constraints-gpu.txt; Python 3.12, Linux x86_64), the wheel of this clone, its
# files, and install, which installs all of it in memory. For SGLang, VERSIONS is what `uv pip compile` writes for its environment.
set -eu
cd "$(dirname "$0")/.."
OUT=${1:?"give a folder"}
VERSIONS=${2:-versions/constraints-gpu.txt}
mkdir -p "$OUT/wheels"
python=${PYTHON:-python3}

# pip takes the tags that are named, and no older ones.
platforms="--platform linux_x86_64 --platform manylinux1_x86_64 --platform manylinux2010_x86_64 --platform manylinux2014_x86_64"
minor=5
while [ $minor -le 34 ]; do platforms="$platforms --platform manylinux_2_${minor}_x86_64"; minor=$((minor + 1)); done
# The list is complete: no dependency is resolved.
$python -m pip download --quiet --no-deps --prefer-binary --python-version 3.12 $platforms --dest "$OUT/wheels" --requirement "$VERSIONS"
for source in "$OUT"/wheels/*.tar.gz; do
    [ -e "$source" ] || continue
    $python -m pip wheel --quiet --no-deps --wheel-dir "$OUT/wheels" "$source"
    rm "$source"
done
$python -m pip download --quiet --no-deps --only-binary :all: --dest "$OUT/wheels" --python-version 3.12 --platform linux_x86_64 \
    --index-url https://verl-project.github.io/verl-wheelhouse/simple/ flash-attn==2.8.3 ||
    echo "flash-attn is not in the bundle: the proof reports its path as skipped" >&2
$python -m pip wheel --quiet --no-deps --wheel-dir "$OUT/wheels" .
git archive --prefix=verl-mas/ --output "$OUT/verl-mas.tar.gz" HEAD
cat > "$OUT/install" <<'END'
#!/bin/sh
# install [FOLDER]: makes FOLDER/venv and FOLDER/verl-mas; by default in memory, from which imports take seconds.
set -eu
cd "$(dirname "$0")"
TO=${1:-/dev/shm/proof}
mkdir -p "$TO"
"${PYTHON:-python3.12}" -m venv "$TO/venv"
"$TO/venv/bin/python" -m pip install --quiet --no-index --no-deps wheels/*.whl
tar -xzf verl-mas.tar.gz -C "$TO"
echo "run: $TO/venv/bin/python $TO/verl-mas/scripts/gpu_proof.py"
END
chmod +x "$OUT/install"
du -sh "$OUT"
