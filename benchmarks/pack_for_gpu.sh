#!/usr/bin/env bash
# Pack what raysim needs beside torch for Python 3.12 on x86-64 Linux, for a machine without internet: on_a_gpu.py
# explains its use.
#
#     bash benchmarks/pack_for_gpu.sh [FOLDER]        writes FOLDER/site.tar.xz; default: .gpu
#
# PIP: the pip to use; default: python -m pip. The versions are those of constraints.txt. Ray's wheel takes 76 MiB; the
# parts of Ray that raysim does not use are left out, so that the archive takes 30 MiB. MLflow is not packed, because
# on_a_gpu.py and tests/gpu do without it.
set -euo pipefail
folder=${1:-.gpu}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
names=(ray pydantic pydantic-core annotated-types typing-inspection typing-extensions greenlet fastcluster
       jsonschema jsonschema-specifications referencing rpds-py)
platforms=()
for name in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${name}_x86_64")
done
${PIP:-python -m pip} download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --constraint constraints.txt --dest "$site/wheels" "${names[@]}"
mkdir -p "$folder" "$site/packages"
for wheel in "$site"/wheels/*.whl; do
    python -m zipfile -e "$wheel" "$site/packages"
done
cd "$site/packages"
rm -rf ray/{jars,rllib,serve,train,tune,data,llm,dashboard/client}
chmod +x ray/core/src/ray/{gcs/gcs_server,raylet/raylet}  # zipfile drops the permission
cd - > /dev/null
tar --create --xz --directory "$site/packages" --file "$folder/site.tar.xz" .
ls -l "$folder/site.tar.xz"
