#!/usr/bin/env bash
# Makes a virtual environment with the Python libraries for the benchmark's comparison. Where that is impossible it prints so, and
# the benchmark runs without them.
set -euo pipefail

environment=$1
requirements=$(dirname "$0")/requirements.txt

if cmp -s "$requirements" "$environment/installed.txt"; then
    exit
fi
if python3 -m venv "$environment" && "$environment/bin/pip" install --quiet --requirement "$requirements"; then
    cp "$requirements" "$environment/installed.txt"
else
    rm -rf "$environment"
    echo 'dlock: no Python with venv and pip here: the locks of Python libraries are left out' >&2
fi
