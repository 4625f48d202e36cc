# shellcheck shell=bash
# The upstream (Debian's docker-registry with the sample images) and the cache under test. Sourced after rig.sh.
# shellcheck disable=SC2034,SC2154 # variables cross between this file and the scripts that source it

# Fixed ports are free: nobody else lives in this network namespace.
upstream=127.0.0.1:5200
cache=127.0.0.1:5100
cache_admin=127.0.0.1:5101

declare -A digest=()

start_upstream() {
    cat >"$work/upstream.yml" <<YAML
version: 0.1
log: {level: warn}
storage:
  filesystem:
    rootdirectory: $work/upstream
http: {addr: $upstream}
YAML
    start upstream docker-registry serve "$work/upstream.yml"
    eventually curl -sf "http://$upstream/v2/"
}

# Two by skopeo as they are, one converted to Docker schema 2, the artifact and its list by plain HTTP.
push_images() {
    local name value
    while read -r name value; do digest[$name]=$value; done < <(python3 "$here/images.py" "$work/images")
    copy() { skopeo --policy "$work/policy.json" copy --quiet --dest-tls-verify=false "$@"; }
    echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
    copy --all --preserve-digests "oci:$work/images/multi:1.0" "docker://$upstream/library/multi:1.0"
    copy --preserve-digests "oci:$work/images/zstd:1.0" "docker://$upstream/library/zstd:1.0"
    copy --format v2s2 "oci:$work/images/schema2:1.0" "docker://$upstream/library/schema2:1.0"
    python3 "$here/registry.py" push "http://$upstream" library/multi "$work/images/sbom" sbom
    python3 "$here/registry.py" push "http://$upstream" library/multi "$work/images/referrers" "${digest[multi]/:/-}"
    # The conversion gave it another digest, and skopeo wrote the manifest.
    digest[schema2]=$(curl -sfI -H 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
        "http://$upstream/v2/library/schema2/manifests/1.0" | tr -d '\r' | awk 'tolower($1) == "docker-content-digest:" {print $2}')
}

# start_cache VOLUME: the program under test, as `larder serve FILE`, with distribution's configuration.
start_cache() {
    launch_cache "$1"
    cache_is_healthy
}

cache_is_healthy() { eventually curl -sf "http://$cache_admin/debug/health"; }

launch_cache() {
    cat >"$work/cache.yml" <<YAML
version: 0.1
log: {level: info}
storage:
  filesystem:
    rootdirectory: $1
  delete: {enabled: true}
http:
  addr: $cache
  draintimeout: 2s
  headers: {X-Content-Type-Options: [nosniff]}
  debug: {addr: $cache_admin, prometheus: {enabled: true}}
health: {storagedriver: {enabled: true, interval: 10s, threshold: 3}}
proxy: {remoteurl: "http://$upstream"}
YAML
    mkdir -p "$1"
    start cache env OTEL_TRACES_EXPORTER=none "$larder" serve "$work/cache.yml"
}

# Everything upstream is asked from here on counts.
mark() {
    marked=0
    asked >/dev/null
    marked=$(wc -l <"$work/upstream.log")
}

# Lines of upstream's access log since `mark`. A request of our own closes the list, because the log is written late.
asked() {
    local fence=fence-$RANDOM$RANDOM
    if [[ -n ${process[upstream]:-} ]]; then
        curl -s -o "$work/fence" "http://$upstream/$fence"
        eventually grep -q "$fence" "$work/upstream.log"
    fi
    tail -n +$((marked + 1)) "$work/upstream.log" | { grep -vE 'fence-[0-9]+ ' || true; }
}

# What the clients did not get from the cache.
nobody_went_past_the_cache() {
    asked >"$work/asked"
    ! grep -E '"(containerd|skopeo|crane|go-containerregistry)/' "$work/asked"
}

# Each blob was asked for once, and this many there were.
each_of_N_blobs_was_fetched_once() {
    asked | { grep -oE '"GET /v2/[^ ]+/blobs/[^ ?]+' || true; } | sort | uniq -c >"$work/blobs"
    cat "$work/blobs"
    same "$1" "$(wc -l <"$work/blobs")"
    same 0 "$(awk '$1 > 1' "$work/blobs" | wc -l)"
}

# HEAD requests may ask whether a tag has moved; content must not move.
no_content_was_fetched() {
    asked >"$work/asked"
    ! grep -E '"GET /v2/[^ ]+/(blobs|manifests)/' "$work/asked"
}
