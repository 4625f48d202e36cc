#!/usr/bin/env bash
# The official OCI conformance suite against larder: as a cache between pushes and pulls, and for reading alone.
#
#     run.sh [LARDER [MODE...]]        default: target/debug/larder, and the modes below
#
# Prints one line per claim and a table of the counts; the reports stay in the folder LARDER_REPORTS, or in a temporary one that
# is named. Needs root, a Debian machine and Go; says SKIPPED where they are missing, or fails if CI=true.
set -euo pipefail
official=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=conformance/clients/rig.sh
. "$official/../clients/rig.sh"
# shellcheck source=conformance/clients/registries.sh
. "$here/registries.sh"

modes=(
    hosted-1.1
    hosted-dev
    pull-through-docker-registry
    pull-through-larder
    read-only-1.1
    read-only-dev
)

larder=$(binary_under_test "$@")
shift || true
[[ $# -eq 0 ]] || modes=("$@")
if [[ -z ${LARDER_CLIENTS_INSIDE:-} ]]; then
    "$here/packages.sh" skopeo docker-registry iproute2 python3 curl || unavailable "the registry's packages can't be installed"
    LARDER_CLIENTS_TOOLS=$("$here/tools.sh" official) || unavailable "the official suite can't be built"
    LARDER_REPORTS=${LARDER_REPORTS:-$(mktemp -d "${TMPDIR:-/tmp}/larder-reports-XXXXXX")}
    mkdir -p "$LARDER_REPORTS"
    LARDER_REPORTS=$(realpath "$LARDER_REPORTS")
    export LARDER_CLIENTS_TOOLS LARDER_REPORTS
fi
enter_namespace "$larder" "${modes[@]}"
suite=$LARDER_CLIENTS_TOOLS/conformance
reports=$LARDER_REPORTS

front=127.0.0.1:5300
upstream_admin=127.0.0.1:5201
# What was judged, for the table.
judged=()

# suite_run MODE RUN ADDRESS [VARIABLE=VALUE...]: one run; its output and reports in a folder of its own.
suite_run() {
    local folder=$reports/$1/$2 address=$3
    shift 3
    rm -rf "$folder"
    mkdir -p "$folder"
    # In its folder, where no oci-conformance.yaml lies about, and with no OCI_ variable but ours. The exit code is no answer.
    (
        cd "$folder"
        # shellcheck disable=SC2086 # a list of names
        unset ${!OCI_*}
        env OCI_REGISTRY="$address" OCI_TLS=disabled OCI_RESULTS_DIR=. "$@" \
            timeout 300 "$suite" >report.txt 2>report.err || true
    )
}

# judge MODE: three claims about the runs of MODE.
judge() {
    judged+=("$1")
    check "$1: every run has reported" python3 "$official/report.py" whole "$1" "$reports"
    check "$1: nothing fails" python3 "$official/report.py" clean "$1" "$reports"
    check "$1: no fewer tests pass than the last time" python3 "$official/report.py" count "$1" "$reports"
}

start_front() {
    start front python3 "$official/front.py" "$front" "$cache" "$upstream"
    eventually curl -sf "http://$front/v2/"
}

# start_hosting NAME ADDRESS ADMIN: a larder that owns every repository.
start_hosting() {
    mkdir -p "$work/hosted-$1"
    start "$1" env REGISTRY_HTTP_ADDR="$2" REGISTRY_HTTP_DEBUG_ADDR="$3" \
        REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY="$work/hosted-$1" "$larder" serve "$official/../../config/hosted.yml"
    eventually curl -sf "http://$3/debug/health"
}

# pull_through MODE [VARIABLE=VALUE...]: the suite pushes to upstream and reads through the cache. Nothing is deleted: a cache
# rightly keeps what it has by digest.
pull_through() {
    local mode=$1
    shift
    start_cache "$work/volume-$mode"
    start_front
    suite_run "$mode" all "$front" OCI_VERSION=dev OCI_API_{BLOBS,MANIFESTS,TAGS}_{DELETE,ATOMIC}=false "$@"
    stop front
    stop cache
    judge "$mode"
}

# Debian's registry takes neither sha512 nor `?tag=`, and foreign layers only from where it is told.
pull_through_docker_registry() {
    REGISTRY_VALIDATION_MANIFESTS_URLS_ALLOW='["^https?://"]' start_upstream
    pull_through pull-through-docker-registry OCI_DATA_SHA512=false OCI_API_MANIFESTS_TAG_PARAM=false
    stop upstream
}

pull_through_larder() {
    start_hosting upstream "$upstream" "$upstream_admin"
    pull_through pull-through-larder
    stop upstream
}

# The digests of a sample: `manifests NAME` the index or manifest and its children, `blobs NAME` what they refer to.
digests_of() {
    python3 - "$1" "$work/images/multi" "$work/images/sbom" <<'PYTHON'
import json, pathlib, sys
found = {"manifests": [], "blobs": []}
for layout in map(pathlib.Path, sys.argv[2:]):
    todo = json.loads((layout / "index.json").read_text())["manifests"]
    while todo:
        digest = todo.pop()["digest"]
        manifest = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
        found["manifests"].append(digest)
        todo += manifest.get("manifests", [])
        found["blobs"] += [blob["digest"] for blob in [manifest.get("config"), *manifest.get("layers", [])] if blob]
print(*dict.fromkeys(found[sys.argv[1]]))
PYTHON
}

# read_only VERSION: a repository that exists: through an empty cache, from a full one, and from that while upstream is stopped,
# when nobody can say that something does not exist. The suite fails to write its
# reports when pushes are switched off, unless it runs part by part; and its check of the digest header of manifests (dev) never
# holds for content that it has not pushed.
read_only() {
    local mode part phase parts=(read-only ping empty missing-manifest invalid-digest-format)
    start_upstream
    push_images
    local settings=(
        OCI_VERSION="$1" OCI_REPO1=library/multi OCI_REPO2=library/zstd OCI_API_PUSH=false
        OCI_API_{BLOBS,MANIFESTS,TAGS}_DELETE=false OCI_API_MANIFESTS_DIGEST_HEADER=false
        OCI_RO_DATA_TAGS="1.0 sbom ${digest[multi]/:/-}" OCI_RO_DATA_REFERRERS="${digest[multi]}"
        OCI_RO_DATA_MANIFESTS="$(digests_of manifests)" OCI_RO_DATA_BLOBS="$(digests_of blobs)"
    )
    for phase in cold warm offline; do
        mode=read-only-$1-$phase
        if [[ $phase == offline ]]; then
            stop upstream
            parts=(read-only ping)
        fi
        start_cache "$work/volume-read-only-$1"
        for part in "${parts[@]}"; do
            suite_run "$mode" "$part" "$cache" "${settings[@]}" OCI_FILTER_TEST="OCI Conformance Test/$part"
        done
        stop cache
        judge "$mode"
    done
}

# hosted VERSION: everything the suite has.
hosted() {
    start_hosting cache "$cache" "$cache_admin"
    suite_run "hosted-$1" all "$cache" OCI_VERSION="$1"
    stop cache
    rm -rf "$work/hosted-cache"
    judge "hosted-$1"
}

begin
for mode in "${modes[@]}"; do
    case $mode in
        hosted-1.1 | hosted-dev) hosted "${mode#hosted-}" ;;
        pull-through-docker-registry) pull_through_docker_registry ;;
        pull-through-larder) pull_through_larder ;;
        read-only-1.1 | read-only-dev) read_only "${mode#read-only-}" ;;
        *) echo "error: no mode \`$mode\`" >&2 && exit 2 ;;
    esac
done
python3 "$official/report.py" table "$reports" "${judged[@]}"
echo "reports: $reports"
