#!/usr/bin/env bash
# deb.sh DIRECTORY: a Debian package with the module, the program that has a server load it, the documents, and what they name: all
# settings, the dashboard, the alerts, a group's descriptions; and the command line with its manual page. The same sources give the
# same package.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=packaging/source.sh
. packaging/source.sh

command -v dpkg-shlibdeps >/dev/null || integration/apt.sh dpkg-dev

mkdir -p "$1"
directory=$(cd "$1" && pwd -P)
architecture=$(dpkg --print-architecture)
# To dpkg, what stands after a `~` comes before the release.
version=$(version | tr - '~')
package=$directory/dlock_${version}_$architecture.deb
root=$directory/root
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH

umask 022
rm -rf "$root"
mkdir -p "$root"/{DEBIAN,debian,usr/lib/redis/modules,usr/share/doc/dlock/docs}
packaging/module.sh . "$directory/build" "$root/usr/lib/redis/modules/libdlock.so"
install -D -m 755 packaging/debian/dlock-module "$root/usr/sbin/dlock-module"
install -D -m 644 packaging/dlock.conf "$root/usr/share/doc/dlock/packaging/dlock.conf"
install -m 644 README.md README.zh-CN.md CHANGELOG.md "$root/usr/share/doc/dlock/"
for folder in docs observability packaging/group; do
    find "$folder" -type f ! -name '*_test.yml' ! -name '*.sh' -exec install -D -m 644 {} "$root/usr/share/doc/dlock/{}" \;
done
install -m 755 packaging/group/start.sh "$root/usr/share/doc/dlock/packaging/group/start.sh"
for page in CONTRIBUTING.md SECURITY.md clients/DESIGN.md clients/*/README.md; do
    install -D -m 644 "$page" "$root/usr/share/doc/dlock/$page"
done
install -m 644 LICENSE "$root/usr/share/doc/dlock/LICENSE"
packaging/links.pl "$root/usr/share/doc/dlock"
packaging/cli.sh "$directory/cli"
install -D -m 755 "$directory/cli/dlock" "$root/usr/bin/dlock"
install -D -m 644 "$directory/cli/completion/dlock" "$root/usr/share/bash-completion/completions/dlock"
install -D -m 644 "$directory/cli/completion/_dlock" "$root/usr/share/zsh/vendor-completions/_dlock"
install -D -m 644 "$directory/cli/completion/dlock.fish" "$root/usr/share/fish/vendor_completions.d/dlock.fish"
install -d "$root"/usr/share/man/man{1,8}
gzip -9 -n <"$directory/cli/dlock.1" >"$root/usr/share/man/man1/dlock.1.gz"
gzip -9 -n <packaging/debian/dlock-module.8 >"$root/usr/share/man/man8/dlock-module.8.gz"
install -m 644 LICENSE "$root/usr/share/doc/dlock/copyright"
install -m 755 packaging/debian/{prerm,postinst,postrm} "$root/DEBIAN/"

# It reads the name of the package from a file of a source package.
printf 'Source: dlock\n\nPackage: dlock\nArchitecture: any\n' >"$root/debian/control"
depends=$(cd "$root" && find usr -name libdlock.so | xargs dpkg-shlibdeps -O 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
rm -r "$root/debian"
size=$(cd "$root" && find usr -type f -printf '%s\n' | awk '{ bytes += $1 } END { print int((bytes + 1023) / 1024) }')
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@DEPENDS@/$depends/" -e "s/@SIZE@/$size/" \
    packaging/debian/control >"$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$package"
