# shellcheck shell=bash
# What the scripts of this folder share: claims, processes, waiting, and a network of their own. Sourced, never run.
# shellcheck disable=SC2034,SC2154 # variables cross between this file and the scripts that source it

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
passed=0
failed=0

# Says that this machine can't run the tests: an error where they are promised (CI), else a line nobody overlooks.
unavailable() {
    if [[ ${CI:-} == true ]]; then
        echo "error: $*" >&2
        exit 1
    fi
    echo "SKIPPED: $*"
    exit 0
}

# binary_under_test [LARDER]: its full path.
binary_under_test() {
    local binary=${1:-${CARGO_TARGET_DIR:-$here/../../target}/debug/larder}
    [[ -x $binary ]] || { echo "error: no program at $binary; \`cargo build\` makes larder's" >&2; return 1; }
    realpath "$binary"
}

# Runs the caller again in namespaces with no network but loopback: every port is free, and a client that loses its way
# can't reach a public registry. The PID namespace ends whatever is left of it, even after a kill -9.
enter_namespace() {
    [[ -z ${LARDER_CLIENTS_INSIDE:-} ]] || return 0
    [[ $(id -u) -eq 0 ]] || unavailable "real clients need root (containerd, network namespace)"
    unshare --net --mount --pid --fork --mount-proc true || unavailable "real clients need network, mount and PID namespaces"
    exec env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy LARDER_CLIENTS_INSIDE=1 \
        unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
}

# Opens the temporary folder and the clean-up. Called once, inside the namespace.
begin() {
    ip link set lo up
    work=$(mktemp -d "${TMPDIR:-/tmp}/larder-clients-XXXXXX")
    trap finish EXIT
    trap 'exit 130' INT TERM
}

finish() {
    local code=$? name
    set +e
    for name in "${!process[@]}"; do stop "$name"; done
    [[ $code -eq 0 ]] || failed=$((failed + (failed == 0)))
    echo "$passed passed, $failed failed"
    if [[ $failed -eq 0 ]]; then
        rm -rf "$work"
    else
        echo "logs: $work"
        code=1
    fi
    exit "$code"
}

# check CLAIM COMMAND...: runs the command under `set -e` and tells whether the claim holds.
check() {
    local claim=$1 log code=0
    shift
    log=$work/check-$((passed + failed + 1)).log
    # Not `if (...)`: a condition would switch `set -e` off inside.
    set +e
    (set -e; "$@") >"$log" 2>&1
    code=$?
    set -e
    if [[ $code -eq 0 ]]; then
        passed=$((passed + 1))
        echo "ok - $claim"
    else
        failed=$((failed + 1))
        echo "not ok - $claim"
        tail -n 60 "$log" | sed 's/^/    # /'
    fi
}

# same WANTED FOUND: for use inside checks.
same() {
    [[ $1 == "$2" ]] || { echo "wanted: $1"; echo "found:  $2"; return 1; }
}

declare -A process=()

# start NAME COMMAND...: a background process whose output goes to NAME.log and NAME.err.
start() {
    local name=$1
    shift
    "$@" >>"$work/$name.log" 2>>"$work/$name.err" &
    process[$name]=$!
}

# Ends a process politely, after 10 s otherwise, and waits for it.
stop() {
    local pid=${process[$1]:-}
    [[ -n $pid ]] || return 0
    unset "process[$1]"
    kill -TERM "$pid" 2>/dev/null || true
    for _ in {1..100}; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# eventually COMMAND...: tries for 20 s.
eventually() {
    for _ in {1..200}; do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    echo "never true within 20 s: $*" >&2
    return 1
}
