#!/usr/bin/env bash
# Real clients push to a larder that hosts: skopeo, buildah, crane, oras. A second larder caches the first, and containerd 1.6
# and 2.4 (ctr, CRI) and oras pull through it: cold, and with the first one stopped.
#
#     push.sh [LARDER]        default: target/debug/larder
#
# Prints one line per claim. Needs root, a Debian machine and Go; says SKIPPED where they are missing, or fails if CI=true.
set -euo pipefail
# shellcheck source=conformance/clients/rig.sh
. "$(dirname "$0")/rig.sh"
# shellcheck source=conformance/clients/registries.sh
. "$here/registries.sh"
# shellcheck source=conformance/clients/containerd.sh
. "$here/containerd.sh"
# shellcheck source=conformance/clients/pushers.sh
. "$here/pushers.sh"

larder=$(binary_under_test "$@")
if [[ -z ${LARDER_CLIENTS_INSIDE:-} ]]; then
    "$here/packages.sh" containerd runc skopeo buildah iproute2 python3 curl || unavailable "the clients' packages can't be installed"
    LARDER_CLIENTS_TOOLS=$("$here/tools.sh" containerd crictl crane oras) || unavailable "the clients can't be built"
    export LARDER_CLIENTS_TOOLS
fi
enter_namespace "$larder"
mapfile -t tools <<<"$LARDER_CLIENTS_TOOLS"
containerd2=${tools[0]}
crictl=${tools[1]}
crane=${tools[2]}
oras=${tools[3]}

# The registry at the end of the chain, in the place that `registries.sh` has for an upstream.
start_hosting() {
    cat >"$work/hosting.yml" <<YAML
version: 0.1
log: {level: info}
storage:
  filesystem: {rootdirectory: $work/hosted}
  delete: {enabled: true}
http: {addr: $upstream}
larder:
  hosted: {repositories: ["*"], delete: true}
YAML
    start upstream "$larder" serve "$work/hosting.yml"
    eventually curl -sf "http://$upstream/v2/"
}

# Lines of the hosting larder's access log since `mark`. A request of our own closes the list.
mark() {
    fence
    marked=$(wc -l <"$work/upstream.log")
}

fence() {
    local name=fence-$RANDOM$RANDOM
    curl -s -o "$work/fence" "http://$upstream/$name"
    eventually grep -q "$name" "$work/upstream.log"
}

asked() {
    fence
    tail -n +$((marked + 1)) "$work/upstream.log" | { grep 'msg="answered"' || true; } | { grep -v 'fence-' || true; }
}

only_the_cache_came() {
    asked >"$work/asked"
    grep -q 'user_agent=larder' "$work/asked"
    ! grep -vE 'user_agent=larder' "$work/asked"
}

no_blob_was_sent_twice() {
    asked | { grep -oE 'method=GET path=/v2/[^ ]+/blobs/[^ ]+' || true; } | sed 's/.*blobs.//' | sort | uniq -c >"$work/blobs"
    cat "$work/blobs"
    [[ -s $work/blobs ]]
    same 0 "$(awk '$1 > 1' "$work/blobs" | wc -l)"
}

# pulls CLIENT PULL FORGET: with an empty cache, and from the cache alone.
pulls() {
    local client=$1 pull=$2 forget=$3
    "$forget" >>"$work/forget.log" 2>&1
    start_cache "$work/volume of ${client/,/}"
    mark
    check "$client: a cold pull through the chain has the right digests" "$pull"
    check "$client: nothing of it went past the cache" only_the_cache_came
    check "$client: no blob left the hosting larder twice" no_blob_was_sent_twice
    check "$client: what was pulled is taken from the client" "$forget"
    stop upstream
    check "$client: a warm pull works while the hosting larder is stopped" "$pull"
    stop cache
    start_hosting
}

# The samples of run.sh, and what the other pushers made.
pull_more_by_ctr() {
    local name
    pull_by_ctr
    for name in buildah-oci buildah-docker mounted layout; do
        node_ctr images pull --snapshotter native --hosts-dir "$node/certs.d" "docker.io/library/$name:1.0"
        same "${digest[$name]}" "$(node_ctr images ls "name==docker.io/library/$name:1.0" | awk 'NR == 2 {print $3}')"
    done
}

# CRI lists a digest under every name that has it.
pull_more_by_cri() {
    local name
    pull_by_cri
    for name in buildah-oci buildah-docker mounted layout; do
        cri pull "docker.io/library/$name:1.0"
        cri inspecti -o go-template --template '{{json .status.repoDigests}}' "docker.io/library/$name:1.0" >"$work/digests"
        grep -F "\"docker.io/library/$name@${digest[$name]}\"" "$work/digests"
    done
}

pull_by_oras() {
    rm -rf "$work/pulled"
    oras_of "$cache" pull charts/demo:0.1.0 -o "$work/pulled"
    cmp "$work/chart/demo-0.1.0.tgz" "$work/pulled/demo-0.1.0.tgz"
    cmp "$work/chart/demo-0.1.0.tgz.prov" "$work/pulled/demo-0.1.0.tgz.prov"
    same "${digest[chart]}" "$(oras_digest "$cache" charts/demo:0.1.0)"
    oras_of "$cache" pull "charts/demo@${digest[signature]}" -o "$work/pulled"
    cmp "$work/chart/signature.json" "$work/pulled/signature.json"
    same "${digest[signature]}" "$(referrers_at "$cache" "charts/demo@${digest[chart]}")"
    # While the registry is stopped, the list has those that were pulled.
    oras_of "$cache" "manifest fetch" "library/multi@${digest[sbom]}" --output "$work/sbom"
    same "${digest[sbom]}" "$(referrers_at "$cache" "library/multi@${digest[multi]}")"
    same "${digest[cosign]}" "$(oras_digest "$cache" "library/multi:$(cosign_tag)")"
    oras_of "$cache" pull "library/multi:$(cosign_tag)" -o "$work/pulled/cosign"
    cmp "$work/chart/payload.json" "$work/pulled/cosign/payload.json"
}

forget_oras() { rm -rf "$work/pulled"; }

begin
make_samples
start_hosting

check "skopeo pushes an index with all its platforms" push_multi_by_skopeo
check "skopeo pushes zstd layers and Docker schema 2" push_others_by_skopeo
check "skopeo finds each blob there when it pushes again" push_again_by_skopeo
digest[schema2]=$(served_digest "$upstream" library/schema2:1.0)
check "buildah builds and pushes an OCI image" push_by_buildah oci
check "buildah builds and pushes a Docker image" push_by_buildah docker
digest[buildah-oci]=$(cat "$work/digest-oci" || true)
digest[buildah-docker]=$(cat "$work/digest-docker" || true)
check "what buildah pushed is whole" buildah_images_are_whole
check "crane copies an index to another repository by mounting" crane_mounts
check "crane pushes an OCI layout" crane_pushes
check "crane lists the repositories" crane_lists_repositories
check "crane tags and deletes a tag, and the image stays" crane_deletes_a_tag
check "oras pushes a chart" push_chart
digest[chart]=$(oras_digest "$upstream" charts/demo:0.1.0)
check "oras attaches a signature by subject and discovers it" attach_signature
digest[signature]=$(cat "$work/digest-signature" || true)
check "oras pushes an artifact about an index, and the list of referrers has it" push_sbom
check "a signature is pushed by the tag that cosign uses" push_cosign
digest[cosign]=$(oras_digest "$upstream" "library/multi:$(cosign_tag)")
check "oras copies a chart with its signature to another repository" copy_recursively
stop upstream
start_hosting
check "all that was pushed is whole after a restart" all_is_whole

start_containerd 1 /usr/bin
pulls "containerd 1.6, ctr" pull_more_by_ctr forget_images
pulls "containerd 1.6, CRI" pull_more_by_cri forget_images
stop containerd
start_containerd 2 "$containerd2"
pulls "containerd 2.4, ctr" pull_more_by_ctr forget_images
pulls "containerd 2.4, CRI" pull_more_by_cri forget_images
stop containerd
pulls "oras" pull_by_oras forget_oras

start_cache "$work/volume-late"
check "a signature that is attached later is seen through the chain" late_signature_is_seen
check "the cache refuses a push" cache_refuses_a_push
stop cache
