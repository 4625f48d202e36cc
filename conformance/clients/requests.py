"""What the three caches are asked in sidebyside.sh: requests in order, by phase. Data only, used by record.py.

A phase is one state of the upstream. The order matters: the first request for a thing finds it cold, later ones warm.
"""

import hashlib
import json
import pathlib

INDEX = "application/vnd.oci.image.index.v1+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
ALL = {"Accept": f"{DOCKER}, {LIST}, {OCI}, {INDEX}, */*"}
UNKNOWN = "sha256:" + "5" * 64


class Samples:
    """Digests inside the layouts of images.py."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.index = self.top("multi")
        amd64, arm64 = self.read("multi", self.index)["manifests"]
        self.amd64, self.arm64 = amd64["digest"], arm64["digest"]
        self.base, self.amd64_layer = self.layers("multi", self.amd64)
        self.arm64_layer = self.layers("multi", self.arm64)[1]
        self.config = self.read("multi", self.amd64)["config"]["digest"]
        self.one, self.two = self.layers("schema2", self.top("schema2"))
        self.zstd = self.top("zstd")
        (self.zstd_layer,) = self.layers("zstd", self.zstd)
        self.sbom = self.top("sbom")
        (self.sbom_layer,) = self.layers("sbom", self.sbom)

    def top(self, name):
        return json.loads((self.folder / name / "index.json").read_text())["manifests"][0]["digest"]

    def read(self, name, digest):
        return json.loads((self.folder / name / "blobs" / "sha256" / digest[7:]).read_text())

    def layers(self, name, digest):
        return [layer["digest"] for layer in self.read(name, digest)["layers"]]


class Wait:
    """Pulls a blob, unrecorded, until it is on the volume: distribution stores it some time after the client has all of
    it, and its catalog lists a repository only then."""

    def __init__(self, repository, digest):
        self.repository, self.digest = repository, digest


def online(s):
    """Upstream is well."""
    multi, schema2, zstd = "/v2/library/multi", "/v2/library/schema2", "/v2/library/zstd"
    return [
        ("root", "GET", "/", {}),
        ("base", "GET", "/v2/", {}),
        ("base HEAD", "HEAD", "/v2/", {}),
        ("base without slash", "GET", "/v2", {}),
        ("base of v1", "GET", "/v1/", {}),
        ("path unknown", "GET", "/v2/library/multi/nothing", {}),
        ("name in capitals", "GET", "/v2/Library/multi/manifests/1.0", ALL),
        ("tag too long", "GET", f"{multi}/manifests/{'t' * 129}", ALL),
        # Manifests, cold.
        ("tag cold HEAD", "HEAD", f"{multi}/manifests/1.0", ALL),
        ("tag warm", "GET", f"{multi}/manifests/1.0", ALL),
        ("tag warm ns", "GET", f"{multi}/manifests/1.0?ns=docker.io", ALL),
        ("tag warm any type", "GET", f"{multi}/manifests/1.0", {"Accept": "*/*"}),
        ("tag warm no accept", "GET", f"{multi}/manifests/1.0", {}),
        ("tag warm same etag", "GET", f"{multi}/manifests/1.0", {**ALL, "If-None-Match": f'"{s.index}"'}),
        ("tag warm other etag", "GET", f"{multi}/manifests/1.0", {**ALL, "If-None-Match": f'"{UNKNOWN}"'}),
        ("tag schema2 cold", "GET", f"{schema2}/manifests/1.0", ALL),
        ("tag schema2 warm HEAD", "HEAD", f"{schema2}/manifests/1.0", ALL),
        ("tag schema2 warm any type", "GET", f"{schema2}/manifests/1.0", {"Accept": "*/*"}),
        ("tag zstd cold", "GET", f"{zstd}/manifests/1.0", ALL),
        ("tag zstd warm wrong type", "GET", f"{zstd}/manifests/1.0", {"Accept": DOCKER}),
        ("tag zstd warm any type", "GET", f"{zstd}/manifests/1.0", {"Accept": "*/*"}),
        ("digest cold", "GET", f"{multi}/manifests/{s.amd64}", ALL),
        ("digest warm", "GET", f"{multi}/manifests/{s.amd64}", ALL),
        ("digest warm HEAD", "HEAD", f"{multi}/manifests/{s.amd64}", ALL),
        ("digest cold HEAD", "HEAD", f"{multi}/manifests/{s.arm64}", ALL),
        ("digest artifact", "GET", f"{multi}/manifests/{s.sbom}", ALL),
        ("digest unknown", "GET", f"{multi}/manifests/{UNKNOWN}", ALL),
        ("digest unknown HEAD", "HEAD", f"{multi}/manifests/{UNKNOWN}", ALL),
        ("digest unknown same etag", "GET", f"{multi}/manifests/{UNKNOWN}", {**ALL, "If-None-Match": f'"{UNKNOWN}"'}),
        ("digest malformed", "GET", f"{multi}/manifests/sha256:abc", ALL),
        ("tag unknown", "GET", f"{multi}/manifests/none", ALL),
        ("tag unknown HEAD", "HEAD", f"{multi}/manifests/none", ALL),
        ("tag of unknown repository", "GET", "/v2/none/none/manifests/1.0", ALL),
        # Blobs.
        ("blob cold", "GET", f"{multi}/blobs/{s.amd64_layer}", {}),
        Wait("library/multi", s.amd64_layer),
        ("blob warm", "GET", f"{multi}/blobs/{s.amd64_layer}", {}),
        ("blob warm HEAD", "HEAD", f"{multi}/blobs/{s.amd64_layer}", {}),
        ("blob warm gzip accepted", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Accept-Encoding": "gzip, zstd"}),
        ("blob warm same etag", "GET", f"{multi}/blobs/{s.amd64_layer}", {"If-None-Match": f'"{s.amd64_layer}"'}),
        ("blob warm range", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=100-199"}),
        ("blob warm range HEAD", "HEAD", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=100-199"}),
        ("blob warm range open", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=1000000-"}),
        ("blob warm range suffix", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=-7"}),
        ("blob warm range clamped", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=1000000-99999999"}),
        ("blob warm range beyond", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=99999999-"}),
        ("blob warm range reversed", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=500-0"}),
        ("blob warm range two parts", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=0-9,100-109"}),
        ("blob warm range other unit", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "lines=1-2"}),
        ("blob warm range same If-Range", "GET", f"{multi}/blobs/{s.amd64_layer}",
         {"Range": "bytes=0-9", "If-Range": f'"{s.amd64_layer}"'}),
        ("blob warm range other If-Range", "GET", f"{multi}/blobs/{s.amd64_layer}",
         {"Range": "bytes=0-9", "If-Range": f'"{UNKNOWN}"'}),
        ("blob cold HEAD", "HEAD", f"{multi}/blobs/{s.arm64_layer}", {}),
        ("blob cold range", "GET", f"{multi}/blobs/{s.base}", {"Range": "bytes=100-199"}),
        ("blob cold range suffix", "GET", f"{schema2}/blobs/{s.one}", {"Range": "bytes=-7"}),
        ("blob cold range beyond", "GET", f"{schema2}/blobs/{s.two}", {"Range": "bytes=99999999-"}),
        ("blob cold same etag", "GET", f"{zstd}/blobs/{s.zstd_layer}", {"If-None-Match": f'"{s.zstd_layer}"'}),
        ("blob small cold", "GET", f"{multi}/blobs/{s.config}", {}),
        ("blob of artifact cold", "GET", f"{multi}/blobs/{s.sbom_layer}", {}),
        ("blob unknown", "GET", f"{multi}/blobs/{UNKNOWN}", {}),
        ("blob unknown HEAD", "HEAD", f"{multi}/blobs/{UNKNOWN}", {}),
        ("blob malformed", "GET", f"{multi}/blobs/sha256:abc", {}),
        ("blob of unknown repository", "GET", f"/v2/none/none/blobs/{UNKNOWN}", {}),
        # Lists.
        Wait("library/schema2", s.one),
        Wait("library/zstd", s.zstd_layer),
        ("tags", "GET", f"{multi}/tags/list", {}),
        ("tags first", "GET", f"{multi}/tags/list?n=1", {}),
        ("tags next", "GET", f"{multi}/tags/list?n=1&last=1.0", {}),
        ("tags last page", "GET", f"{multi}/tags/list?n=5&last=zzz", {}),
        ("tags zero", "GET", f"{multi}/tags/list?n=0", {}),
        ("tags negative", "GET", f"{multi}/tags/list?n=-1", {}),
        ("tags no number", "GET", f"{multi}/tags/list?n=many", {}),
        ("tags ten thousand", "GET", f"{multi}/tags/list?n=10000", {}),
        ("tags of unknown repository", "GET", "/v2/none/none/tags/list", {}),
        ("catalog", "GET", "/v2/_catalog", {}),
        ("catalog first", "GET", "/v2/_catalog?n=1", {}),
        ("catalog next", "GET", "/v2/_catalog?n=5&last=library/multi", {}),
        ("catalog zero", "GET", "/v2/_catalog?n=0", {}),
        ("catalog too many", "GET", "/v2/_catalog?n=5000", {}),
        ("catalog no number", "GET", "/v2/_catalog?n=many", {}),
        ("referrers", "GET", f"{multi}/referrers/{s.index}", {}),
        # Nothing can be written.
        ("write upload", "POST", f"{multi}/blobs/uploads/", {"Content-Length": "0"}),
        ("write mount", "POST", f"{multi}/blobs/uploads/?mount={s.one}&from=library/schema2", {"Content-Length": "0"}),
        ("write upload part", "PATCH", f"{multi}/blobs/uploads/0f0e", {"Content-Length": "0"}),
        ("write upload end", "PUT", f"{multi}/blobs/uploads/0f0e?digest={s.one}", {"Content-Length": "0"}),
        ("write upload cancelled", "DELETE", f"{multi}/blobs/uploads/0f0e", {}),
        ("write upload status", "GET", f"{multi}/blobs/uploads/0f0e", {}),
        ("write manifest", "PUT", f"{multi}/manifests/1.1", {"Content-Type": INDEX, "Content-Length": "0"}),
        ("write manifest gone", "DELETE", f"{multi}/manifests/{s.index}", {}),
        ("write tag gone", "DELETE", f"{multi}/manifests/1.0", {}),
        ("write blob gone", "DELETE", f"{multi}/blobs/{s.amd64_layer}", {}),
        ("write blob", "POST", f"{multi}/blobs/{s.amd64_layer}", {"Content-Length": "0"}),
    ]


def unwell(s, phase):
    """Upstream is gone, or answers with nothing but one error. Unknown things are others in each phase, because a cache
    may remember for a while that something does not exist."""
    multi, zstd, cold = "/v2/library/multi", "/v2/library/zstd", f"cold-{phase}"
    digest = "sha256:" + hashlib.sha256(cold.encode()).hexdigest()
    return [
        ("base", "GET", "/v2/", {}),
        ("tag warm", "GET", f"{multi}/manifests/1.0", ALL),
        ("tag warm HEAD", "HEAD", f"{multi}/manifests/1.0", ALL),
        ("tag cold", "GET", f"{multi}/manifests/{cold}", ALL),
        ("digest warm", "GET", f"{multi}/manifests/{s.amd64}", ALL),
        ("digest cold", "GET", f"{multi}/manifests/{digest}", ALL),
        ("blob warm", "GET", f"{multi}/blobs/{s.amd64_layer}", {}),
        ("blob warm range", "GET", f"{multi}/blobs/{s.amd64_layer}", {"Range": "bytes=100-199"}),
        ("blob cold", "GET", f"{zstd}/blobs/{digest}", {}),
        ("blob cold HEAD", "HEAD", f"{zstd}/blobs/{digest}", {}),
        ("tags", "GET", f"{multi}/tags/list", {}),
        ("tags cold", "GET", f"/v2/none/{cold}/tags/list", {}),
        ("catalog", "GET", "/v2/_catalog", {}),
    ]


ADMIN = [
    ("admin health", "GET", "/debug/health", {}),
    ("admin metrics", "GET", "/metrics", {}),
    ("admin root", "GET", "/", {}),
]
