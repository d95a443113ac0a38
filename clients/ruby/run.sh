#!/usr/bin/env bash
# There is no package for Ruby: runs the plain commands that docs/clients.md shows. Ruby and its library are the distribution's;
# `run.sh --install` installs them where they are missing.
set -euo pipefail
cd "$(dirname "$0")"

if [ "${1:-}" = --install ]; then
    { command -v ruby && ruby -e 'require "redis"'; } >/dev/null 2>&1 || ../../integration/apt.sh ruby ruby-redis
    exit
fi
timeout 60 ruby plain.rb
