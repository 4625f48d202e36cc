#!/usr/bin/env bash
# larder beside nginx (sendfile, static files) and docker-registry, in interleaved rounds on loopback: warm hits of a large
# blob, small hits, and many clients on one cold blob. Prints a table of medians; the raw lines stay in the file it names.
#
#     serve.sh FOLDER        with the built `larder` and `examples/load`: target/release
#
# ROUNDS=3 SECONDS_EACH=4 CLIENTS=50 can be set. Read ratios within one run: absolute figures belong to the machine. The load
# generator runs on the same cores as what it measures.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries=$(realpath -e "${1:-${CARGO_TARGET_DIR:-$here/../target}/release}")
rounds=${ROUNDS:-3}
seconds=${SECONDS_EACH:-4}
clients=${CLIENTS:-50}
larder=$binaries/larder
load=$binaries/examples/load
nginx=$(PATH=$PATH:/usr/sbin command -v nginx || true)

for tool in "$larder" "$load"; do
    [[ -x $tool ]] || { echo "error: $tool is missing: run \`make bench\`" >&2; exit 1; }
done
if [[ -z $nginx ]] || ! command -v wrk docker-registry curl python3 >/dev/null; then
    "$here/../conformance/clients/packages.sh" nginx-light wrk docker-registry curl python3-minimal
    nginx=$(PATH=$PATH:/usr/sbin command -v nginx)
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/larder-bench-XXXXXX")
raw=${RAW:-$(mktemp "${TMPDIR:-/tmp}/larder-bench-raw-XXXXXX")}
# docker-registry 2.8 does not take `*/*` for an OCI manifest.
readonly accept='Accept: application/vnd.oci.image.manifest.v1+json'
declare -A process=() address=() digest=()

stop() {
    local pid=${process[$1]:-} child
    [[ -n $pid ]] || return 0
    unset "process[$1]"
    kill -TERM "$pid" 2>/dev/null || true
    for _ in {1..50}; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    # nginx's workers go with their master, unless that had to be killed.
    for child in $(pgrep -P "$pid" || true); do kill -KILL "$child" 2>/dev/null || true; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

finish() {
    local name
    set +e
    for name in "${!process[@]}"; do stop "$name"; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

eventually() {
    for _ in {1..100}; do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    echo "error: never true within 10 s: $*" >&2
    tail -n 5 "$work"/*.log >&2
    return 1
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() { curl -sf --max-time 2 -o /dev/null "http://$1/v2/"; }

start_upstream() {
    "$load" upstream 100000000 hit:268435456 small:16384 "$@" >"$work/upstream.out" 2>"$work/upstream.log" &
    process[upstream]=$!
    eventually grep -q '^manifest ' "$work/upstream.out"
    local name value
    while read -r name value; do digest[$name]=$value; done <"$work/upstream.out"
    address[upstream]=${digest[listening]}
}

start_nginx() {
    local kind site=$work/site/v2/bench/image
    mkdir -p "$site/blobs" "$site/manifests" "$work/nginx"
    echo '{}' >"$work/site/v2/index.html"
    for kind in hit small; do
        curl -sf -o "$site/blobs/${digest[$kind]}" "http://${address[upstream]}/v2/bench/image/blobs/${digest[$kind]}"
    done
    curl -sf -o "$site/manifests/${digest[manifest]}" "http://${address[upstream]}/v2/bench/image/manifests/1.0"
    cp "$site/manifests/${digest[manifest]}" "$site/manifests/1.0"
    chmod -R a+rX "$work"
    address[nginx]=127.0.0.1:$(free_port)
    cat >"$work/nginx.conf" <<CONF
worker_processes 2;
daemon off;
pid $work/nginx.pid;
error_log $work/nginx.log;
events { worker_connections 1024; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    client_body_temp_path $work/nginx; proxy_temp_path $work/nginx; fastcgi_temp_path $work/nginx;
    uwsgi_temp_path $work/nginx; scgi_temp_path $work/nginx;
    server { listen ${address[nginx]}; root $work/site; default_type application/octet-stream; }
}
CONF
    "$nginx" -c "$work/nginx.conf" 2>>"$work/nginx.log" &
    process[nginx]=$!
    eventually answers "${address[nginx]}"
}

# start_cache NAME VOLUME COMMAND...: distribution's configuration, the log as quiet as it gets.
start_cache() {
    local name=$1 volume=$2
    shift 2
    mkdir -p "$volume"
    address[$name]=127.0.0.1:$(free_port)
    cat >"$work/$name.yml" <<YAML
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $volume}}
http: {addr: "${address[$name]}"}
proxy: {remoteurl: "http://${address[upstream]}"}
larder: {tagttl: 10m}
YAML
    OTEL_TRACES_EXPORTER=none "$@" "$work/$name.yml" >"$work/$name.log" 2>&1 &
    process[$name]=$!
    eventually answers "${address[$name]}"
}

launch() {
    case $1 in
        registry) start_cache registry "$2" docker-registry serve ;;
        larder) start_cache larder "$2" "$larder" serve ;;
    esac
}

processes_of() { echo "${process[$1]}"; pgrep -P "${process[$1]}" || true; }

# CPU seconds so far, of a server and its workers.
cpu() {
    local pid ticks=0 stat
    for pid in $(processes_of "$1"); do
        stat=$(<"/proc/$pid/stat")
        # shellcheck disable=SC2086 # fields; the name before them may hold blanks
        set -- ${stat##*) }
        ticks=$((ticks + ${12} + ${13}))
    done
    awk -v ticks="$ticks" -v each="$(getconf CLK_TCK)" 'BEGIN {printf "%.2f", ticks / each}'
}

forget_peak() {
    local pid
    for pid in $(processes_of "$1"); do echo 5 >"/proc/$pid/clear_refs" 2>/dev/null || true; done
}

# Peak resident MiB since `forget_peak`, summed over workers.
peak() {
    local pid
    for pid in $(processes_of "$1"); do grep VmHWM "/proc/$pid/status"; done | awk '{sum += $2} END {printf "%.1f", sum / 1024}'
}

# note CASE SERVER FIGURE=VALUE...
note() { echo "$*" | tee -a "$raw" >&2; }

hit() {
    local server=$1 connections=$2 before after bytes time
    forget_peak "$server"
    before=$(cpu "$server")
    read -r bytes time _ < <("$load" get "http://${address[$server]}/v2/bench/image/blobs/${digest[hit]}" "$connections" "$seconds")
    after=$(cpu "$server")
    note "hit-256MiB-x$connections" "$server" "$(awk -v b="$bytes" -v t="$time" -v c="$after" -v d="$before" \
        'BEGIN {g = b / 2^30; printf "GiB/s=%.2f CPU-s/GiB=%.3f", g / t, (c - d) / g}')" "RSS-MiB=$(peak "$server")"
}

small() {
    local server=$1 name=$2 path=$3 before after output
    before=$(cpu "$server")
    output=$(wrk -t 1 -c 32 -d "${seconds}s" -H "$accept" --latency "http://${address[$server]}/v2/bench/image/$path")
    after=$(cpu "$server")
    if grep -q 'Non-2xx' <<<"$output"; then
        echo "error: $server answers $path with errors" >&2
        return 1
    fi
    note "$name" "$server" "$(awk -v cpu="$(awk -v a="$after" -v b="$before" 'BEGIN {print a - b}')" '
        function ms(text) { return text ~ /us$/ ? text / 1000 : text ~ /ms$/ ? text + 0 : text * 1000 }
        $1 == "50%" {p50 = ms($2)}
        $1 == "99%" {p99 = ms($2)}
        /requests in/ {count = $1}
        /Requests\/sec/ {rate = $2}
        END {printf "req/s=%.0f p50-ms=%.2f p99-ms=%.2f CPU-us=%.0f", rate, p50, p99, cpu * 1e6 / count}' <<<"$output")"
}

# cold SERVER ROUND: a cache that has nothing, and everyone wants the same blob at once.
cold() {
    local server=$1 blob=${digest[cold$2]} before sent first50 first99 done50 done_max short cpu_before
    launch "$server" "$work/cold-$server-$2"
    before=$(curl -s "http://${address[upstream]}/stats" | cut -d' ' -f1)
    cpu_before=$(cpu "$server")
    forget_peak "$server"
    read -r first50 first99 done50 done_max short < <("$load" cold "http://${address[$server]}/v2/bench/image/blobs/$blob" "$clients")
    sent=$(($(curl -s "http://${address[upstream]}/stats" | cut -d' ' -f1) - before))
    note "cold-200MiB-x$clients" "$server" "$(awk -v s="$sent" -v f="$first50" -v g="$first99" -v d="$done50" -v m="$done_max" \
        -v c="$(cpu "$server")" -v b="$cpu_before" \
        'BEGIN {printf "upstream=%.2fx first-p50-ms=%.0f first-p99-ms=%.0f done-p50-s=%.2f done-max-s=%.2f vs-ideal=%.2fx CPU-s=%.2f",
            s / 209715200, f * 1000, g * 1000, d, m, m / 2.097, c - b}')" "RSS-MiB=$(peak "$server")" "short=$short"
    stop "$server"
    rm -rf "$work/cold-$server-$2"
}

cold_blobs=()
for ((round = 1; round <= rounds; round++)); do cold_blobs+=("cold$round:209715200"); done
start_upstream "${cold_blobs[@]}"
start_nginx
launch registry "$work/registry"
launch larder "$work/larder"
servers=(nginx registry larder)

for server in "${servers[@]}"; do
    for path in "blobs/${digest[hit]}" "blobs/${digest[small]}" "manifests/${digest[manifest]}" manifests/1.0; do
        curl -sSf -H "$accept" -o "$work/got" "http://${address[$server]}/v2/bench/image/$path" ||
            { echo "error: $server does not serve $path" >&2; exit 1; }
        [[ $path == */1.0 ]] && path=manifests/${digest[manifest]}
        [[ sha256:$(sha256sum <"$work/got" | cut -d' ' -f1) == "${path#*/}" ]] || { echo "error: $server serves wrong bytes" >&2; exit 1; }
    done
done
sleep 2 # docker-registry stores what it has just answered

for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds" >&2
    for connections in 1 8 64; do
        for server in "${servers[@]}"; do hit "$server" "$connections"; done
    done
    for server in "${servers[@]}"; do
        small "$server" manifest-by-digest "manifests/${digest[manifest]}"
        small "$server" manifest-by-tag manifests/1.0
        small "$server" blob-16KiB "blobs/${digest[small]}"
    done
done
for name in "${servers[@]}"; do stop "$name"; done
for ((round = 1; round <= rounds; round++)); do
    cold registry "$round"
    cold larder "$round"
done

python3 "$here/table.py" "$raw"
echo "raw lines: $raw"
