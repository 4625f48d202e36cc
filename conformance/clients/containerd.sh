# shellcheck shell=bash
# One containerd with hosts.toml, used by `ctr` and by CRI. Sourced after registries.sh.
# shellcheck disable=SC2034,SC2154 # variables cross between this file and the scripts that source it

# start_containerd VERSION FOLDER_OF_BINARIES: 1 or 2, with the cache before `server` for docker.io.
start_containerd() {
    node=$work/containerd$1
    ctr_binary=$2/ctr
    # CRI keeps images here; ctr gets a namespace of its own.
    mkdir -p "$node/certs.d/docker.io"
    cat >"$node/certs.d/docker.io/hosts.toml" <<TOML
server = "http://$upstream"
[host."http://$cache"]
  capabilities = ["pull", "resolve"]
TOML
    "containerd$1_config" >"$node/config.toml"
    start containerd env PATH="$2:$PATH" "$2/containerd" --config "$node/config.toml"
    eventually node_ctr version
    eventually cri info
}

# The native snapshotter works on every file system, and unpacking is not the point here.
containerd1_config() {
    cat <<TOML
version = 2
root = "$node/root"
state = "$node/state"
[grpc]
  address = "$node/c.sock"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "$node/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "$node/cni"
TOML
}

containerd2_config() {
    cat <<TOML
version = 3
root = "$node/root"
state = "$node/state"
[grpc]
  address = "$node/c.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "$node/certs.d"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = "$node/cni"
[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = "linux/amd64"
  snapshotter = "native"
TOML
}

node_ctr() { timeout 60 "$ctr_binary" --address "$node/c.sock" "$@"; }
cri() { timeout 60 "$crictl/crictl" --runtime-endpoint "unix://$node/c.sock" --image-endpoint "unix://$node/c.sock" "$@"; }

# Takes every image and blob away from all namespaces: what is pulled next comes over the network.
forget_images() {
    local namespace images
    for namespace in default k8s.io; do
        images=$(node_ctr -n "$namespace" images ls -q)
        # shellcheck disable=SC2086 # one word per image
        [[ -z $images ]] || node_ctr -n "$namespace" images rm --sync $images
        eventually no_content_in "$namespace"
    done
}

no_content_in() { [[ -z $(node_ctr -n "$1" content ls -q) ]]; }

# Every sample by tag, the index by digest too, the artifact without unpacking: it is no file system.
pull_by_ctr() {
    local name
    for name in multi schema2 zstd; do
        node_ctr images pull --snapshotter native --hosts-dir "$node/certs.d" "docker.io/library/$name:1.0"
        same "${digest[$name]}" "$(node_ctr images ls "name==docker.io/library/$name:1.0" | awk 'NR == 2 {print $3}')"
    done
    node_ctr images pull --snapshotter native --hosts-dir "$node/certs.d" "docker.io/library/multi@${digest[multi]}"
    node_ctr content fetch --hosts-dir "$node/certs.d" docker.io/library/multi:sbom
    same "${digest[sbom]}" "$(node_ctr images ls name==docker.io/library/multi:sbom | awk 'NR == 2 {print $3}')"
}

# As kubelet does it.
pull_by_cri() {
    local name
    for name in multi schema2 zstd; do
        cri pull "docker.io/library/$name:1.0"
        same "[\"docker.io/library/$name@${digest[$name]}\"]" \
            "$(cri inspecti -o go-template --template '{{json .status.repoDigests}}' "docker.io/library/$name:1.0")"
    done
}
