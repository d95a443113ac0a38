#!/usr/bin/env bash
# deb-check.sh PACKAGE SERVERS: installs the package in place of one as 0.3.0 had it, has Debian's Redis and a Valkey load the module
# as the package says, and give a lock, also after a CONFIG REWRITE and a restart; removes the package, and looks that nothing is left.
# Valkey is the machine's, or that of Debian's archive, fetched into SERVERS.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=packaging/lock.sh
. "$here/lock.sh"

package=$1
servers=$2
files=(/usr/lib/redis/modules/libdlock.so /usr/sbin/dlock-module
    /usr/share/doc/dlock/{README.md,CHANGELOG.md,copyright,docs/ladder.md,packaging/dlock.conf}
    /usr/share/man/man1/dlock.1.gz /usr/share/man/man8/dlock-module.8.gz
    /usr/share/bash-completion/completions/dlock /usr/share/zsh/vendor-completions/_dlock
    /usr/share/fish/vendor_completions.d/dlock.fish
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
[ -f /etc/redis/redis.conf ] || fail 'the configuration of the package redis-server is not there'
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

# The module and the settings of 0.3.0 in a package like that one: its snippet loads the module, and servers include it.
former_package() {
    local root=$1/former
    dpkg-deb --raw-extract "$package" "$root"
    rm -rf "$root"/DEBIAN/{postinst,postrm,prerm,md5sums} "$root/usr/sbin"
    mkdir -p "$root/etc/dlock"
    echo "loadmodule $module" >"$root/etc/dlock/dlock.conf"
    echo /etc/dlock/dlock.conf >"$root/DEBIAN/conffiles"
    sed -i 's/^Version: .*/Version: 0.2.9/' "$root/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone --build "$root" "$1/former.deb" >/dev/null
}

module=/usr/lib/redis/modules/libdlock.so
config=/etc/redis/dlock-check.conf
own=/etc/redis/redis.conf
elsewhere=$(mktemp -d)
chmod 755 "$elsewhere"
cleanup() {
    root dpkg --purge dlock >/dev/null
    root rm -f "$config"
    [ ! -e "$elsewhere/own" ] || root cp -a "$elsewhere/own" "$own"
    root rm -rf "$elsewhere"
}
trap cleanup EXIT
root cp -a "$own" "$elsewhere/own"
former_package "$elsewhere"
root dpkg --install "$elsewhere/former.deb" >/dev/null
echo 'include /etc/dlock/dlock.conf' | root tee "$config" >/dev/null

said=$(root dpkg --install "$package" 2>&1)
echo "$said"
[[ $said == *"$config will not start"*'dlock-module enable'* ]] || fail "nothing was said of $config"
for file in "${files[@]}"; do
    [ -s "$file" ] || fail "$file was not installed"
done
[ -z "$(dpkg --verify dlock)" ] || fail 'files are not as the package has them'
"$here/links.pl" --check /usr/share/doc/dlock || fail 'links of the package lead nowhere'
/usr/bin/dlock --version || fail 'the command line does not start'
# Until an administrator acts, everything is as it was.
takes_a_lock "$valkey" <(echo 'include /etc/dlock/dlock.conf') >/dev/null 2>&1 &&
    fail 'a server that includes what loads the module starts again after a rewrite: then all this is not needed'

root dlock-module enable
root dlock-module enable >/dev/null
for file in "$own" "$config"; do
    [ "$(root grep -c "^loadmodule $module\$" "$file")" -eq 1 ] || fail "$file has no line that loads the module, or two of them"
done
[ "$(stat -c '%U %a' "$own")" = "$(stat -c '%U %a' "$elsewhere/own")" ] || fail "$own belongs to somebody else"
root cat "$own" >"$elsewhere/server.conf"
takes_a_lock /usr/bin/redis-server "$elsewhere/server.conf" ${as_service[@]+"${as_service[@]}"}
takes_a_lock "$valkey" <(root cat "$config")
if [ -n "$restricted" ]; then
    cp "$module" "$elsewhere/"
    if said=$(takes_a_lock /usr/bin/redis-server <(echo "loadmodule $elsewhere/libdlock.so") "${as_service[@]}" 2>&1); then
        fail 'what restricts the service was not tried: it loads a module from anywhere'
    fi
    [[ $said == *'failed to map segment from shared object'* ]] || fail "$said"
    echo "Debian's service loads the module from where it is installed, and from nowhere else"
fi
root dlock-module disable "$own"
root cmp "$own" "$elsewhere/own" || fail "$own is not as it was"

# The removal warns a user who has not taken the line out.
said=$(root dpkg --remove dlock 2>&1)
echo "$said"
[[ $said == *"$config loads the module"* ]] || fail "nothing was said of $config"
[[ $said != *"$own"* ]] || fail "$own does not load the module"
[ ! -e "$module" ] || fail 'the module is still there'
if (takes_a_lock /usr/bin/redis-server "$elsewhere/server.conf" ${as_service[@]+"${as_service[@]}"}) >/dev/null 2>&1; then
    fail 'a server loads a module that is not there: another one was tested'
fi
# What an administrator may have changed is kept until it is purged.
[ -e /etc/dlock/dlock.conf ] || fail 'the configuration of 0.3.0 is gone'
root dpkg --purge dlock
for file in "${files[@]}" /etc/dlock /usr/share/doc/dlock; do
    [ ! -e "$file" ] || fail "$file is still there"
done
echo 'the package was installed, used and removed'
