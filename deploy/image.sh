#!/usr/bin/env bash
# Builds the container image: a static binary by cargo, then the Dockerfile by buildah or docker, whichever is there.
#
#     image.sh [TAG]        default: larder:VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tag=${1:-larder:$version}
target_folder=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
authorities=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}

builder=$(command -v buildah || command -v docker) || { echo "error: neither buildah nor docker is installed" >&2; exit 1; }
[[ -s $authorities ]] || { echo "error: no certificate authorities in $authorities: install ca-certificates or set CA_BUNDLE" >&2; exit 1; }

# With `--target`, build scripts and macros are not built statically.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --bin larder --target "$host"

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/root
mkdir -p "$root"/{usr/local/bin,etc/ssl/certs,etc/distribution,var/lib/registry,tmp}
install -m 755 "$target_folder/$host/release/larder" "$root/usr/local/bin/larder"
install -m 644 "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
install -m 644 config/container.yml "$root/etc/distribution/config.yml"
echo 'larder:x:65532:65532:larder:/var/lib/registry:/sbin/nologin' >"$root/etc/passwd"
echo 'larder:x:65532:' >"$root/etc/group"
chmod 1777 "$root/tmp"
if command -v ldd >/dev/null && ldd "$root/usr/local/bin/larder" 2>&1 | grep -q '=>'; then
    echo "error: the binary is not static" >&2
    exit 1
fi

# As an archive, because only that keeps owners: a new volume takes its owner from the folder it is mounted on.
pack() { tar -C "$root" --sort=name --mtime=@0 --numeric-owner -f "$context/root.tar" "$@"; }
pack --create --owner=0 --group=0 --exclude=./var/lib/registry .
pack --append --owner=65532 --group=65532 ./var/lib/registry
rm -rf "$root"
cp Dockerfile "$context/"

case $(basename "$builder") in
    buildah) buildah bud --isolation chroot --timestamp 0 --tag "$tag" "$context" ;;
    docker) docker build --tag "$tag" "$context" ;;
esac
echo "built $tag"
