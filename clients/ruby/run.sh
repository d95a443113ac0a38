#!/usr/bin/env bash
# There is no package for Ruby: runs the plain commands that docs/clients.md shows. Ruby and its library are the distribution's.
set -euo pipefail
cd "$(dirname "$0")"

if ! { command -v ruby && ruby -e 'require "redis"'; } >/dev/null 2>&1; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo 'dlock: missing: ruby with the library redis; as root: apt-get install ruby ruby-redis' >&2
        exit 1
    fi
    apt-get -o DPkg::Lock::Timeout=120 update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends \
        ruby ruby-redis >/dev/null
fi
timeout 60 ruby plain.rb
