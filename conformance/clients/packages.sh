#!/usr/bin/env bash
# Installs the Debian packages that the real-client tests use: those that are missing, and nothing else.
#
#     packages.sh [PACKAGE...]
set -euo pipefail

if [[ $# -eq 0 ]]; then
    set -- containerd runc skopeo docker-registry iproute2 python3 curl
fi

missing=()
for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

command -v apt-get >/dev/null || { echo "not a Debian machine; needed here: ${missing[*]}" >&2; exit 1; }
[[ $(id -u) -eq 0 ]] || { echo "only root can install: ${missing[*]}" >&2; exit 1; }
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2
apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
