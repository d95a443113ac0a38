#!/usr/bin/env bash
# Installs the package next to the distribution's locks of Symfony and Laravel, and measures them in one run.
set -euo pipefail
cd "$(dirname "$0")"
bench=$DLOCK_CLIENT_TARGET/bench packages=$DLOCK_CLIENT_TARGET/bench-packages
rm -rf "$bench" "$packages"
./run.sh --package "$packages" >&2
missing=()
php -r "exit(extension_loaded('redis') ? 0 : 1);" || missing+=(php-redis)
for one in Predis:php-predis Symfony/Component/Lock:php-symfony-lock Illuminate:php-laravel-framework; do
    [ -e "/usr/share/php/${one%:*}/autoload.php" ] || missing+=("${one#*:}")
done
[ ${#missing[@]} -eq 0 ] || ../../integration/apt.sh "${missing[@]}" >&2
mkdir "$bench"
cat >"$bench/composer.json" <<JSON
{
    "require": {"dlock/redis": "0.6.0-dev"},
    "repositories": [{"type": "artifact", "url": "$packages"}, {"packagist": false}]
}
JSON
export COMPOSER_HOME=$DLOCK_CLIENT_TARGET/composer COMPOSER_ALLOW_SUPERUSER=1 COMPOSER_DISABLE_NETWORK=1
composer install --quiet --no-interaction --working-dir="$bench" >&2
exec timeout 600 php -d display_errors=stderr bench.php
