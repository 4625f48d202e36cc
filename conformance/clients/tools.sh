#!/usr/bin/env bash
# Builds the Go tools that the tests use, each pinned by a go.mod of its own in ../tools (the official suite: ../official), and
# prints the folder of each one. A tool is built once per machine and version: the binaries live in a cache outside the checkout.
#
#     tools.sh [TOOL...]        default: all
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LARDER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/larder-tools}

# pin TOOL: the folder of its go.mod.
pin() {
    case $1 in
        official) echo "$here/../official" ;;
        *) echo "$here/../tools/$1" ;;
    esac
}

# The version of the module that holds the first `tool` of a go.mod.
pinned_version() {
    awk '
        $1 == "tool" && $2 != "(" { tool = tool ? tool : $2 }
        inside && $1 != ")"       { tool = tool ? tool : $1 }
        $1 == "tool" && $2 == "(" { inside = 1 }
        $1 == ")"                 { inside = 0 }
        { line = $0; sub(/^require /, "", line); split(line, field); if (field[2] ~ /^v/) version[field[1]] = field[2] }
        END { for (module in version) if (index(tool "/", module "/") == 1) print version[module] }
    ' "$(pin "$1")/go.mod"
}

# Built beside its place and renamed, so that a build that was cut short is never taken for a tool.
build() {
    local tool=$1 folder=$2 fresh
    command -v go >/dev/null || { echo "building $tool needs Go 1.26 or newer" >&2; return 1; }
    mkdir -p "$cache"
    fresh=$(mktemp -d "$cache/.building-XXXXXX")
    echo "building $tool, once per machine (a few minutes)" >&2
    if CGO_ENABLED=0 go -C "$(pin "$tool")" build -mod=readonly -buildvcs=false -trimpath -ldflags='-s -w' -o "$fresh/" tool >&2; then
        mv -T "$fresh" "$folder" 2>/dev/null || rm -rf "$fresh" # another run was faster
    else
        rm -rf "$fresh"
        echo "$tool can't be built: are Go modules reachable from here?" >&2
        return 1
    fi
}

if [[ $# -eq 0 ]]; then
    set -- containerd crane crictl official oras registry
fi
for tool in "$@"; do
    folder=$cache/$tool-$(pinned_version "$tool")
    [[ -d $folder ]] || build "$tool" "$folder"
    echo "$folder"
done
