#!/usr/bin/env bash
# Runs the program of a run of failovers: `failover.sh phpredis`. `failover.sh --install` builds and installs what it needs, and
# prints only what has failed.
set -euo pipefail
cd "$(dirname "$0")"
[ "${1:-}" = --install ] || exec php failover.php "$@"

project=$DLOCK_CLIENT_TARGET/failover packages=$DLOCK_CLIENT_TARGET/failover-packages
mkdir -p "$DLOCK_CLIENT_TARGET"
log=$DLOCK_CLIENT_TARGET/failover.log
exec 3>&2 >"$log" 2>&1
trap '[ $? -eq 0 ] || cat "$log" >&3' EXIT
rm -rf "$project" "$packages"
./run.sh --package "$packages"
php -r "exit(extension_loaded('redis') ? 0 : 1);" || ../../integration/apt.sh php-redis
mkdir "$project"
cat >"$project/composer.json" <<JSON
{
    "require": {"dlock/redis": "0.6.0-dev"},
    "repositories": [{"type": "artifact", "url": "$packages"}, {"packagist": false}]
}
JSON
export COMPOSER_HOME=$DLOCK_CLIENT_TARGET/composer COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_DISABLE_NETWORK=1
composer install --no-interaction --no-progress --working-dir="$project"
