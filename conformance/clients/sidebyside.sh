#!/usr/bin/env bash
# The drop-in claim: larder beside the registries it replaces, as caches of one upstream.
#
#     sidebyside.sh [LARDER]        default: target/debug/larder
#
# registry 3.1.1, Debian's docker-registry 2.8 and larder get the same configuration file, environment and requests;
# every difference in status, header or body must stand in differences.py. Then each serves the volume of the other.
set -euo pipefail
# shellcheck source=conformance/clients/rig.sh
. "$(dirname "$0")/rig.sh"
# shellcheck source=conformance/clients/registries.sh
. "$here/registries.sh"

larder=$(binary_under_test "$@")
if [[ -z ${LARDER_CLIENTS_INSIDE:-} ]]; then
    "$here/packages.sh" docker-registry skopeo iproute2 python3 curl || unavailable "the registry's packages can't be installed"
    LARDER_CLIENTS_TOOLS=$("$here/tools.sh" registry) || unavailable "registry 3.1.1 can't be built"
    export LARDER_CLIENTS_TOOLS
fi
enter_namespace "$larder"

declare -rA program=([3.1.1]=$LARDER_CLIENTS_TOOLS/registry [2.8]=docker-registry [larder]=$larder)

# One file for all three, with larder's own section, which distribution must ignore. The root directory is wrong on
# purpose: the environment has the last word.
write_config() {
    cat >"$work/config.yml" <<YAML
version: 0.1
log:
  level: info
  fields: {service: cache}
storage:
  delete: {enabled: true}
  filesystem: {rootdirectory: /nowhere/at/all}
http:
  addr: $cache
  draintimeout: 2s
  headers:
    X-Content-Type-Options: [nosniff]
    X-Configured: [one, two]
  debug:
    addr: $cache_admin
    prometheus: {enabled: false, path: /metrics}
health:
  storagedriver: {enabled: true, interval: 10s, threshold: 3}
proxy:
  remoteurl: http://$upstream
  ttl: 168h0m0s
larder:
  tagttl: 0s
YAML
}

# launch NAME VOLUME. The last two variables are what Kubernetes sets for a Service called "registry".
launch() {
    mkdir -p "$2"
    start cache env OTEL_TRACES_EXPORTER=none \
        REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY="$2" \
        REGISTRY_HTTP_DEBUG_PROMETHEUS_ENABLED=true \
        REGISTRY_PORT=tcp://10.0.0.7:5000 REGISTRY_SERVICE_HOST=10.0.0.7 \
        "${program[$1]}" serve "$work/config.yml"
}

is_healthy() { eventually curl -sf "http://$cache_admin/debug/health"; }

# start_broken_upstream STATUS: it answers /v2/, so that distribution can start, and STATUS to everything else.
start_broken_upstream() {
    start upstream python3 "$here/registry.py" broken "${upstream#*:}" "$1"
    eventually curl -sf "http://$upstream/v2/"
}

every_sample_verifies() {
    local image
    is_healthy
    for image in multi:1.0 multi:sbom "multi:${digest[multi]/:/-}" schema2:1.0 zstd:1.0; do
        python3 "$here/registry.py" verify "http://$cache" "library/$image"
    done
}

record() {
    python3 "$here/record.py" "$1" "$work/images" "$work/volume" "$cache" "$cache_admin" "$work/$2.json"
}

# All states of the upstream, then everything is pulled, so that the volume is worth exchanging.
record_all_phases() {
    local status
    launch "$1" "$work/volume"
    is_healthy
    record online "$1"
    stop upstream
    record gone "$1"
    # The last two may change what a cache does next: it forgets a tag that upstream says is gone, and leaves upstream
    # alone for a while after a 429, unless it begins anew.
    for status in 401 403 503 429 404; do
        start_broken_upstream "$status"
        if [[ $status == 404 ]]; then
            stop cache
            launch "$1" "$work/volume"
            is_healthy
        fi
        record "$status" "$1"
        stop upstream
    done
    stop cache
    start_upstream
    launch "$1" "$work/volume"
    every_sample_verifies
    # 2.8 stores in the background.
    stop upstream
    start_broken_upstream 503
    eventually every_sample_verifies
    stop cache
    stop upstream
    mv "$work/volume" "$work/volume-$1"
    start_upstream
}

begin
write_config
start_upstream
push_images
for name in 3.1.1 2.8 larder; do
    record_all_phases "$name"
done
stop upstream

for name in 3.1.1 2.8; do
    check "larder answers as registry $name but for the fixes named" \
        python3 "$here/compare.py" "$name" "$work/$name.json" "$work/larder.json"
done
for name in 3.1.1 2.8; do
    launch larder "$work/volume-$name"
    check "larder serves a volume of registry $name without upstream" every_sample_verifies
    stop cache
done
start_broken_upstream 503
for name in 3.1.1 2.8; do
    cp -r "$work/volume-larder" "$work/given-back-$name"
    launch "$name" "$work/given-back-$name"
    check "registry $name serves a volume of larder without upstream" every_sample_verifies
    stop cache
done
