#!/usr/bin/env bash
# deb-check.sh PACKAGE SERVERS: installs the package, has Debian's Redis and a Valkey load its snippet and give a lock, removes the
# package, and looks that nothing is left. Valkey is the machine's, or that of Debian's archive, fetched into SERVERS.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=packaging/lock.sh
. "$here/lock.sh"

package=$1
servers=$2
files=(/usr/lib/redis/modules/libdlock.so /etc/dlock/dlock.conf /usr/share/doc/dlock/{README.md,CHANGELOG.md,copyright,docs/ladder.md}
    /usr/share/man/man1/dlock.1.gz
    /usr/share/doc/dlock/{observability/dashboard.json,observability/alerts.yml,packaging/group/start.sh})

fail() {
    printf 'dlock: %s\n' "$@" >&2
    exit 1
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail 'to install a package, become root'
    as_root=(sudo)
fi
root() {
    ${as_root[@]+"${as_root[@]}"} "$@"
}

[ "$(dpkg-query -W -f '${Status}' dlock 2>/dev/null)" != 'install ok installed' ] ||
    fail 'a package dlock is installed already; it is left alone'
[ -x /usr/bin/redis-server ] || "$here/../integration/apt.sh" redis-server
valkey=$(command -v valkey-server || true)
if [ -z "$valkey" ]; then
    [ -x "$servers/valkey-8.0/server" ] || "$here/../integration/servers.sh" "$servers" valkey-8.0
    valkey=$servers/valkey-8.0/server
fi

as_service=()
restricted=
if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
    as_service=("$here/as-service.sh")
    restricted=yes
elif [ "$(id -u)" -eq 0 ]; then
    echo 'of what restricts the service only its user can be had here'
    as_service=(runuser -u redis --)
fi

config=/etc/redis/dlock-check.conf
elsewhere=$(mktemp -d)
cleanup() {
    rm -rf "$elsewhere"
    root rm -f "$config"
    root dpkg --purge dlock >/dev/null
}
trap cleanup EXIT
root dpkg --install "$package"
for file in "${files[@]}"; do
    [ -s "$file" ] || fail "$file was not installed"
done
[ -z "$(dpkg --verify dlock)" ] || fail 'files are not as the package has them'
"$here/links.pl" --check /usr/share/doc/dlock || fail 'links of the package lead nowhere'
/usr/bin/dlock --version || fail 'the command line does not start'

snippet='include /etc/dlock/dlock.conf'
takes_a_lock /usr/bin/redis-server "$snippet" ${as_service[@]+"${as_service[@]}"}
takes_a_lock "$valkey" "$snippet"
if [ -n "$restricted" ]; then
    chmod 755 "$elsewhere"
    cp "${files[0]}" "$elsewhere/"
    if said=$(takes_a_lock /usr/bin/redis-server "loadmodule $elsewhere/libdlock.so" "${as_service[@]}" 2>&1); then
        fail 'what restricts the service was not tried: it loads a module from anywhere'
    fi
    [[ $said == *'failed to map segment from shared object'* ]] || fail "$said"
    echo "Debian's service loads the module from where it is installed, and from nowhere else"
fi

# Who has not removed the line that loads the module is told so.
root mkdir -p "${config%/*}"
echo "$snippet" | root tee "$config" >/dev/null
said=$(root dpkg --remove dlock 2>&1)
echo "$said"
[[ $said == *"$config loads the module"* ]] || fail "nothing was said of $config"
root rm -f "$config"
[ ! -e /usr/lib/redis/modules/libdlock.so ] || fail 'the module is still there'
# What an administrator may have changed is kept until it is purged.
[ -e /etc/dlock/dlock.conf ] || fail 'the configuration is gone'
if (takes_a_lock /usr/bin/redis-server "$snippet" ${as_service[@]+"${as_service[@]}"}) >/dev/null 2>&1; then
    fail 'a server loads a module that is not there: another one was tested'
fi
root dpkg --purge dlock
for file in "${files[@]}" /etc/dlock /usr/share/doc/dlock; do
    [ ! -e "$file" ] || fail "$file is still there"
done
trap - EXIT
rm -rf "$elsewhere"
echo 'the package was installed, used and removed'
