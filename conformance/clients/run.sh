#!/usr/bin/env bash
# Real clients pull real images through larder: containerd 1.6 and 2.4 by ctr and by CRI, skopeo, crane.
#
#     run.sh [LARDER]        default: target/debug/larder; anything that understands `serve FILE` can stand in
#
# Prints one line per claim. Needs root, a Debian machine and Go; says SKIPPED where they are missing, or fails if CI=true.
set -euo pipefail
# shellcheck source=conformance/clients/rig.sh
. "$(dirname "$0")/rig.sh"
# shellcheck source=conformance/clients/registries.sh
. "$here/registries.sh"
# shellcheck source=conformance/clients/containerd.sh
. "$here/containerd.sh"

larder=$(binary_under_test "$@")
if [[ -z ${LARDER_CLIENTS_INSIDE:-} ]]; then
    "$here/packages.sh" || unavailable "the clients' packages can't be installed"
    LARDER_CLIENTS_TOOLS=$("$here/tools.sh" containerd crictl crane) || unavailable "the clients can't be built"
    export LARDER_CLIENTS_TOOLS
fi
enter_namespace "$larder"
mapfile -t tools <<<"$LARDER_CLIENTS_TOOLS"
containerd2=${tools[0]}
crictl=${tools[1]}
crane=${tools[2]}

# How many blobs of the samples a client asks for: without the artifact, with it, with every platform's config, all.
readonly blobs_of_cri=8 blobs_of_ctr=10 blobs_of_ctr2=11 blobs_of_all=12

# four_pulls CLIENT PULL FORGET BLOBS: the life of a cache, with an empty one at the beginning.
four_pulls() {
    local client=$1 pull=$2 forget=$3 blobs=$4
    start_cache "$work/volume of ${client/,/}"
    mark
    check "$client: a cold pull has the right digests" "$pull"
    check "$client: nothing of a cold pull went past the cache" nobody_went_past_the_cache
    check "$client: a cold pull took each blob from upstream once" each_of_N_blobs_was_fetched_once "$blobs"
    check "$client: images are taken from the client" "$forget"
    mark
    check "$client: a warm pull has the right digests" "$pull"
    check "$client: nothing of a warm pull went past the cache" nobody_went_past_the_cache
    check "$client: a warm pull took no content from upstream" no_content_was_fetched
    "$forget" >>"$work/forget.log" 2>&1
    stop upstream
    check "$client: a pull works while upstream is stopped" "$pull"
    stop cache
    start_upstream
    "$forget" >>"$work/forget.log" 2>&1
    check "$client: without a cache it pulls from upstream" "$pull"
    "$forget" >>"$work/forget.log" 2>&1
}

registries_conf() {
    cat <<TOML
[[registry]]
prefix = "docker.io"
location = "$upstream"
insecure = true
[[registry.mirror]]
location = "$cache"
insecure = true
TOML
}

skopeo_copy() {
    timeout 60 skopeo --registries-conf "$work/registries.conf" --policy "$work/policy.json" copy --quiet "$@"
}

# skopeo turns Docker schema 2 into OCI for an `oci:` layout, so that one image goes to a `dir:`.
pull_by_skopeo() {
    local name
    for name in multi:1.0 zstd:1.0 multi:sbom; do
        skopeo_copy --all --preserve-digests "docker://docker.io/library/$name" "oci:$work/skopeo/${name/:/-}"
    done
    same "${digest[multi]}" "$(top_digest multi-1.0)"
    same "${digest[zstd]}" "$(top_digest zstd-1.0)"
    same "${digest[sbom]}" "$(top_digest multi-sbom)"
    skopeo_copy docker://docker.io/library/schema2:1.0 "dir:$work/skopeo/schema2"
    same "${digest[schema2]#*:}" "$(sha256sum <"$work/skopeo/schema2/manifest.json" | cut -d' ' -f1)"
}

top_digest() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)["manifests"][0]["digest"])' <"$work/skopeo/$1/index.json"
}

forget_skopeo() { rm -rf "$work/skopeo"; mkdir -p "$work/skopeo"; }

crane() { timeout 60 "$crane/crane" "$@"; }

# `validate` reads every layer and knows no zstd.
crane_agrees() {
    local name
    for name in multi schema2 zstd; do
        [[ $name == zstd ]] || crane validate --remote "$cache/library/$name:1.0"
        same "${digest[$name]}" "$(crane digest "$cache/library/$name:1.0")"
    done
    same "${digest[sbom]}" "sha256:$(crane manifest "$cache/library/multi:sbom" | sha256sum | cut -d' ' -f1)"
}

crane_lists_all_tags() {
    same "1.0 sbom ${digest[multi]/:/-}" "$(crane ls "$cache/library/multi" | LC_ALL=C sort | xargs)"
}

begin
registries_conf >"$work/registries.conf"
forget_skopeo
start_upstream
push_images

start_containerd 1 /usr/bin
four_pulls "containerd 1.6, ctr" pull_by_ctr forget_images "$blobs_of_ctr"
four_pulls "containerd 1.6, CRI" pull_by_cri forget_images "$blobs_of_cri"
stop containerd
start_containerd 2 "$containerd2"
four_pulls "containerd 2.4, ctr" pull_by_ctr forget_images "$blobs_of_ctr2"
four_pulls "containerd 2.4, CRI" pull_by_cri forget_images "$blobs_of_cri"
stop containerd
four_pulls "skopeo" pull_by_skopeo forget_skopeo "$blobs_of_all"

start_cache "$work/volume-crane"
check "crane: tags are upstream's" crane_lists_all_tags
check "crane: cold images validate" crane_agrees
mark
check "crane: warm images validate" crane_agrees
check "crane: a warm image took no content from upstream" no_content_was_fetched
stop cache
stop upstream
launch_cache "$work/volume-crane"
check "a cache starts while upstream is stopped" cache_is_healthy
check "crane: images validate after such a start" crane_agrees
