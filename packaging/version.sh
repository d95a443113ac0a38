#!/usr/bin/env bash
# version.sh [NEW]: prints the version that each package has, and where; with NEW, gives it to all of them, to the lock files that
# name them, and to the pages and scripts that name a package's file.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a package's version stands behind. The packages' names are dlock, or begin with `dlock-` or `dlock/`.
export BEHIND='\[workspace\.package\]\nversion = "|name = "dlock[-a-z]*"\nversion = "|^__version__ = "'
BEHIND+='|"name": "dlock[-a-z]*",\s+"version": "|"name": "dlock\/redis"[^}]*?"version": "|"dlock\/redis": "'
BEHIND+='|<artifactId>dlock[-a-z]*<\/artifactId>\s+<version>|dlock-(?:redis|go|java|\$\{artifact\[\$module\]\})-|dlock@v'

if [ -n "${1:-}" ]; then
    edit=(-i -pe 's/($ENV{BEHIND})\d+\.\d+\.\d+(?:-dev)?/$1$ENV{NEW}/gm')
else
    edit=(-ne 'print "$2 $ARGV\n" while /($ENV{BEHIND})(\d+\.\d+\.\d+(?:-dev)?)/gm')
fi
find . \( -name target -o -name node_modules -o -name .git \) -prune -o -type f \
    \( -name Cargo.toml -o -name Cargo.lock -o -path './clients/*' ! -path '*/src/main/*' \) -print0 |
    NEW=${1:-} xargs -0 perl -0777 "${edit[@]}"
