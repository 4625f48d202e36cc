#!/usr/bin/env python3
"""A tiny registry client for what skopeo can't do: push an artifact, check every byte of an image, be a broken upstream.

    registry.py push URL REPOSITORY LAYOUT TAG    push an OCI layout (see images.py) as it is
    registry.py verify URL REPOSITORY:REFERENCE   GET a manifest and all it refers to, check digests and sizes
    registry.py broken PORT STATUS                answer /v2/ with 200 and anything else with STATUS, for ever
"""

import hashlib
import http.client
import http.server
import json
import pathlib
import sys
import urllib.parse

ACCEPT = ",".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)


def ask(method, url, body=None, headers=None):
    """One request on a connection of its own; the answer with its whole body."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, f"{parts.path}?{parts.query}".rstrip("?"), body, headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def want(status, method, url, body=None, headers=None):
    answer, data = ask(method, url, body, headers)
    if answer.status != status:
        sys.exit(f"{method} {url}: {answer.status} instead of {status}: {data[:300]!r}")
    return answer, data


def push(base, repository, layout, tag):
    root = f"{base}/v2/{repository}"
    folder = pathlib.Path(layout)
    top = json.loads((folder / "index.json").read_text())["manifests"][0]
    read = lambda descriptor: (folder / "blobs" / "sha256" / descriptor["digest"][7:]).read_bytes()
    manifest = json.loads(read(top))
    for blob in [manifest["config"], *manifest["layers"]] if "config" in manifest else []:
        answer, _ = want(202, "POST", f"{root}/blobs/uploads/")
        place = urllib.parse.urljoin(base, answer.headers["Location"])
        query = urllib.parse.urlencode({"digest": blob["digest"]})
        want(201, "PUT", f"{place}{'&' if '?' in place else '?'}{query}", read(blob))
    want(201, "PUT", f"{root}/manifests/{tag}", read(top), {"Content-Type": top["mediaType"]})


def verify(base, image):
    repository, _, reference = image.partition("@" if "@" in image else ":")
    verify_manifest(f"{base}/v2/{repository}", reference, None)


def check(what, digest, size, data):
    found = "sha256:" + hashlib.sha256(data).hexdigest()
    if digest and found != digest:
        sys.exit(f"{what}: digest {found} instead of {digest}")
    if size is not None and len(data) != size:
        sys.exit(f"{what}: {len(data)} bytes instead of {size}")


def verify_manifest(root, reference, size):
    url = f"{root}/manifests/{reference}"
    answer, data = want(200, "GET", url, headers={"Accept": ACCEPT})
    check(url, answer.headers["Docker-Content-Digest"], size, data)
    check(url, reference if ":" in reference else None, size, data)
    manifest = json.loads(data)
    for child in manifest.get("manifests", []):
        verify_manifest(root, child["digest"], child["size"])
    for blob in [manifest["config"], *manifest["layers"]] if "config" in manifest else []:
        url = f"{root}/blobs/{blob['digest']}"
        check(url, blob["digest"], blob["size"], want(200, "GET", url)[1])


class Broken(http.server.BaseHTTPRequestHandler):
    """An upstream that is there and gives nothing."""

    protocol_version = "HTTP/1.1"
    status = 503

    def do_GET(self):
        status = 200 if self.path.rstrip("/") == "/v2" else self.status
        code = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 429: "TOOMANYREQUESTS"}.get(status, "UNKNOWN")
        body = b"{}" if status == 200 else json.dumps({"errors": [{"code": code, "message": "broken"}]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "7")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


def broken(port, status):
    Broken.status = int(status)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Broken).serve_forever()


if __name__ == "__main__":
    {"push": push, "verify": verify, "broken": broken}[sys.argv[1]](*sys.argv[2:])
