# shellcheck shell=bash
# What each client pushes to the larder that hosts, and how it is looked at afterwards. Sourced by push.sh.
# shellcheck disable=SC2004,SC2034,SC2154 # variables (the array of digests too) cross between this file and the scripts that source it

readonly chart_config=application/vnd.cncf.helm.config.v1+json
readonly chart_content=application/vnd.cncf.helm.chart.content.v1.tar+gzip
readonly chart_provenance=application/vnd.cncf.helm.chart.provenance.v1.prov
readonly signature_type=application/vnd.example.signature.v1+json

make_samples() {
    local name value
    while read -r name value; do digest[$name]=$value; done < <(python3 "$here/images.py" "$work/images")
    digest[mounted]=${digest[multi]}
    digest[layout]=${digest[multi]}
    echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
    mkdir -p "$work/chart/demo"
    printf 'apiVersion: v2\nname: demo\nversion: 0.1.0\n' >"$work/chart/demo/Chart.yaml"
    tar -C "$work/chart" -czf "$work/chart/demo-0.1.0.tgz" demo
    echo "signed: $(sha256sum <"$work/chart/demo-0.1.0.tgz")" >"$work/chart/demo-0.1.0.tgz.prov"
    echo '{"apiVersion":"v2","name":"demo","version":"0.1.0"}' >"$work/chart/config.json"
    echo '{"signed":"demo"}' >"$work/chart/signature.json"
    echo '{"signed":"later"}' >"$work/chart/later.json"
    echo "{\"critical\":{\"image\":{\"docker-manifest-digest\":\"${digest[multi]}\"}}}" >"$work/chart/payload.json"
}

# served_digest REGISTRY NAME:TAG: what a HEAD says.
served_digest() {
    local accept=application/vnd.oci.image.index.v1+json,application/vnd.oci.image.manifest.v1+json
    accept+=,application/vnd.docker.distribution.manifest.v2+json
    curl -sfI -H "Accept: $accept" "http://$1/v2/${2%:*}/manifests/${2##*:}" | tr -d '\r' |
        awk 'tolower($1) == "docker-content-digest:" {print $2}'
}

whole() { python3 "$here/registry.py" verify "http://$upstream" "$1"; }

# --- skopeo

skopeo_push() { timeout 60 skopeo --policy "$work/policy.json" copy --dest-tls-verify=false "$@"; }

push_multi_by_skopeo() {
    skopeo_push --all --preserve-digests "oci:$work/images/multi:1.0" "docker://$upstream/library/multi:1.0"
    same "${digest[multi]}" "$(served_digest "$upstream" library/multi:1.0)"
    whole library/multi:1.0
}

push_others_by_skopeo() {
    skopeo_push --preserve-digests "oci:$work/images/zstd:1.0" "docker://$upstream/library/zstd:1.0"
    skopeo_push --format v2s2 "oci:$work/images/schema2:1.0" "docker://$upstream/library/schema2:1.0"
    same "${digest[zstd]}" "$(served_digest "$upstream" library/zstd:1.0)"
    whole library/zstd:1.0
    whole library/schema2:1.0
}

push_again_by_skopeo() {
    mark
    skopeo_push --all --preserve-digests "oci:$work/images/multi:1.0" "docker://$upstream/library/multi:1.0"
    asked >"$work/asked"
    ! grep -E 'method=(POST|PATCH) ' "$work/asked"
}

# --- buildah

build() {
    timeout 60 buildah --root "$work/buildah/root" --runroot "$work/buildah/run" --storage-driver vfs "$@"
}

# push_by_buildah FORMAT: an image of one file, whose layer is compressed while it is sent.
push_by_buildah() {
    local name=buildah-$1 container
    container=$(build from scratch)
    build copy "$container" "$here/images.py" "/usr/share/$name.py"
    build config --cmd /none --arch amd64 "$container"
    build commit --format "$1" --timestamp 0 --signature-policy "$work/policy.json" --rm "$container" "localhost/$name:1.0"
    build push --tls-verify=false --signature-policy "$work/policy.json" --digestfile "$work/digest-$1" \
        "localhost/$name:1.0" "docker://$upstream/library/$name:1.0"
}

buildah_images_are_whole() {
    local format
    for format in oci docker; do
        same "${digest[buildah-$format]}" "$(served_digest "$upstream" "library/buildah-$format:1.0")"
        whole "library/buildah-$format:1.0"
    done
}

# --- crane

crane() { timeout 60 "$crane/crane" "$@"; }

# Each blob is mounted: no upload gets a body.
crane_mounts() {
    mark
    crane copy "$upstream/library/multi:1.0" "$upstream/library/mounted:1.0"
    asked >"$work/asked"
    same 0 "$(grep -cE 'method=PATCH |method=PUT path=[^ ]*/blobs/' "$work/asked" || true)"
    same 5 "$(grep -cE 'method=POST path=[^ ]*/blobs/uploads/.* status=201 ' "$work/asked")"
    same "${digest[multi]}" "$(crane digest "$upstream/library/mounted:1.0")"
    whole library/mounted:1.0
}

crane_pushes() {
    crane push --index "$work/images/multi" "$upstream/library/layout:outer"
    crane copy "$upstream/library/layout@${digest[multi]}" "$upstream/library/layout:1.0"
    same "${digest[multi]}" "$(crane digest "$upstream/library/layout:1.0")"
    crane validate --remote "$upstream/library/layout:1.0"
    whole library/layout:outer
}

crane_lists_repositories() {
    local all="library/buildah-docker library/buildah-oci library/layout library/mounted library/multi library/schema2 library/zstd"
    same "$all" "$(crane catalog "$upstream" | LC_ALL=C sort | xargs)"
}

crane_deletes_a_tag() {
    crane tag "$upstream/library/multi:1.0" doomed
    same "${digest[multi]}" "$(served_digest "$upstream" library/multi:doomed)"
    crane delete "$upstream/library/multi:doomed"
    same "1.0" "$(crane ls "$upstream/library/multi" | xargs)"
    whole library/multi:1.0
}

# --- oras

# oras_of REGISTRY COMMAND NAME ARGUMENT...: from the folder of the chart, because oras takes relative names only.
oras_of() {
    local registry=$1 command=$2 name=$3
    shift 3
    # shellcheck disable=SC2086 # a command may have two words
    (cd "$work/chart" && timeout 60 "$oras/oras" $command --plain-http "$registry/$name" "$@")
}

oras_digest() { oras_of "$1" "manifest fetch" "$2" --descriptor | python3 -c 'import json, sys; print(json.load(sys.stdin)["digest"])'; }

# The digests of what is about an image, sorted, in one line.
referrers_at() {
    oras_of "$1" discover "$2" --format json --depth 1 |
        python3 -c 'import json, sys; print(*sorted(one["digest"] for one in json.load(sys.stdin)["referrers"]))'
}

push_chart() {
    oras_of "$upstream" push charts/demo:0.1.0 --config "config.json:$chart_config" \
        "demo-0.1.0.tgz:$chart_content" "demo-0.1.0.tgz.prov:$chart_provenance"
    whole charts/demo:0.1.0
}

# attach FILE: prints the digest of the manifest that is about the chart.
attach() {
    oras_of "$upstream" attach "charts/demo@${digest[chart]}" --artifact-type "$signature_type" "$1" --format go-template --template '{{.digest}}'
}

attach_signature() {
    attach signature.json >"$work/digest-signature"
    same "$(cat "$work/digest-signature")" "$(referrers_at "$upstream" "charts/demo@${digest[chart]}")"
    # Registries without the referrers API get this tag from oras instead.
    same "0.1.0" "$(crane ls "$upstream/charts/demo" | xargs)"
}

# The artifact comes from an OCI layout; an index is its subject.
push_sbom() {
    timeout 60 "$oras/oras" cp --from-oci-layout "$work/images/sbom:sbom" --to-plain-http "$upstream/library/multi:sbom"
    same "${digest[sbom]}" "$(served_digest "$upstream" library/multi:sbom)"
    same "${digest[sbom]}" "$(referrers_at "$upstream" "library/multi@${digest[multi]}")"
}

cosign_tag() { echo "${digest[multi]/:/-}.sig"; }

push_cosign() {
    oras_of "$upstream" push "library/multi:$(cosign_tag)" --image-spec v1.0 \
        --config config.json:application/vnd.oci.image.config.v1+json payload.json:application/vnd.dev.cosign.simplesigning.v1+json
    whole "library/multi:$(cosign_tag)"
}

copy_recursively() {
    timeout 60 "$oras/oras" cp --recursive --from-plain-http --to-plain-http "$upstream/charts/demo:0.1.0" "$upstream/copies/demo:0.1.0"
    same "${digest[signature]}" "$(referrers_at "$upstream" "copies/demo@${digest[chart]}")"
    whole copies/demo:0.1.0
    whole "copies/demo@${digest[signature]}"
}

# --- together

all_is_whole() {
    local name
    for name in multi zstd schema2 buildah-oci buildah-docker mounted layout; do whole "library/$name:1.0"; done
    whole charts/demo:0.1.0
    whole library/multi:sbom
    whole "library/multi:$(cosign_tag)"
    whole "copies/demo@${digest[signature]}"
}

late_signature_is_seen() {
    same "${digest[signature]}" "$(referrers_at "$cache" "charts/demo@${digest[chart]}")"
    attach later.json >"$work/digest-later"
    same "$(printf '%s\n' "${digest[signature]}" "$(cat "$work/digest-later")" | LC_ALL=C sort | xargs)" \
        "$(referrers_at "$cache" "charts/demo@${digest[chart]}")"
    oras_of "$cache" pull "charts/demo@$(cat "$work/digest-later")" -o "$work/pulled"
    cmp "$work/chart/later.json" "$work/pulled/later.json"
}

cache_refuses_a_push() {
    local code=0
    oras_of "$cache" push charts/other:1 signature.json >"$work/refused" 2>&1 || code=$?
    cat "$work/refused"
    [[ $code -ne 0 ]]
    grep -qi 'unsupported' "$work/refused"
    ! grep -q 'charts/other' <(crane catalog "$upstream")
}
