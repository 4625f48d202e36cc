#!/usr/bin/env python3
"""Writes the sample images of the real-client tests as OCI layouts.

    images.py FOLDER

Every byte follows from fixed seeds, so digests are the same on every machine and in every run. Archives are stored,
not compressed, inside valid gzip and zstd frames: the size on the wire is the size written here.

    FOLDER/multi      index for linux/amd64 and linux/arm64 that share their largest layer
    FOLDER/schema2    an OCI image that is pushed as Docker schema 2
    FOLDER/zstd       an image whose layer is a zstd frame
    FOLDER/sbom       an artifact (no image) whose `subject` is the index of `multi`
    FOLDER/referrers  the index that lists `sbom` for clients without the referrers API
"""

import hashlib
import io
import json
import pathlib
import random
import struct
import sys
import tarfile
import zlib

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
EMPTY = "application/vnd.oci.empty.v1+json"
SBOM = "application/vnd.example.sbom.v1+json"
MIB = 1024 * 1024


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(seed, size):
    """A layer of one file of `size` bytes that nothing can compress."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        entry = tarfile.TarInfo(f"usr/share/{seed}.bin")
        entry.size = size
        archive.addfile(entry, io.BytesIO(random.Random(seed).randbytes(size)))
    return stream.getvalue()


def gzip_stored(data):
    """RFC 1952 with stored blocks and no time stamp."""
    deflate = zlib.compressobj(0, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    trailer = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + body + trailer


def zstd_stored(data):
    """RFC 8878: one frame of raw blocks, 1 MiB window, content size given, no checksum."""
    frame = [struct.pack("<IBBQ", 0xFD2FB528, 0b1100_0000, 0x50, len(data))]
    for start in range(0, len(data), 128 * 1024):
        block = data[start : start + 128 * 1024]
        last = start + len(block) == len(data)
        frame += [struct.pack("<I", len(block) << 3 | last)[:3], block]
    return b"".join(frame)


class Layout:
    """One OCI layout folder."""

    def __init__(self, folder):
        self.blobs = folder / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def add(self, media_type, data, **more):
        (self.blobs / digest(data)[7:]).write_bytes(data)
        return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}

    def add_json(self, media_type, value, **more):
        return self.add(media_type, json.dumps(value, indent=1).encode(), **more)

    def image(self, architecture, layers, **more):
        """`layers` holds (media type suffix, tar, tar as it is sent)."""
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": ["/none"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(plain) for _, plain, _ in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_json(CONFIG, config),
            "layers": [self.add(LAYER + suffix, sent) for suffix, _, sent in layers],
        }
        return self.add_json(MANIFEST, manifest, **more)

    def finish(self, descriptor, tag):
        named = dict(descriptor, annotations={"org.opencontainers.image.ref.name": tag})
        named.pop("platform", None)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
        print(self.folder.name, descriptor["digest"])


def gzip_layer(seed, size):
    plain = tar(seed, size)
    return ("+gzip", plain, gzip_stored(plain))


def write_multi(folder):
    layout = Layout(folder)
    shared = gzip_layer("base", 8 * MIB)
    children = [
        layout.image(name, [shared, gzip_layer(name, MIB)], platform={"os": "linux", "architecture": name})
        for name in ("amd64", "arm64")
    ]
    index = layout.add_json(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": children})
    layout.finish(index, "1.0")
    return index


def write_zstd(folder):
    layout = Layout(folder)
    plain = tar("zstd", 3 * MIB)
    layout.finish(layout.image("amd64", [("+zstd", plain, zstd_stored(plain))]), "1.0")


def write_schema2(folder):
    layout = Layout(folder)
    layout.finish(layout.image("amd64", [gzip_layer("one", MIB), gzip_layer("two", 100)]), "1.0")


def write_sbom(folder, subject):
    layout = Layout(folder)
    artifact = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": SBOM,
        "config": layout.add(EMPTY, b"{}"),
        "layers": [layout.add_json(SBOM, {"packages": ["none"]})],
        "subject": subject,
    }
    descriptor = layout.add_json(MANIFEST, artifact)
    layout.finish(descriptor, "sbom")
    return descriptor


def main():
    folder = pathlib.Path(sys.argv[1])
    subject = write_multi(folder / "multi")
    write_schema2(folder / "schema2")
    write_zstd(folder / "zstd")
    sbom = write_sbom(folder / "sbom", subject)
    referrers = Layout(folder / "referrers")
    listed = dict(sbom, artifactType=SBOM)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]}
    referrers.finish(referrers.add_json(INDEX, index), subject["digest"].replace(":", "-"))


if __name__ == "__main__":
    main()
