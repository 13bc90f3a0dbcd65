#!/bin/sh
# Write epp/_pb from proto/*.proto. Usage: proto/generate.sh [OUT_DIR] [PYTHON]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../epp/_pb}
python=${2:-python}
"$python" -m grpc_tools.protoc -I "$here" --python_out="$out" --pyi_out="$out" "$here"/calls.proto "$here"/extproc.proto "$here"/state.proto
