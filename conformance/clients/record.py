#!/usr/bin/env python3
"""Asks one cache the requests of a phase and writes down its answers, in a form that can be compared.

    record.py PHASE IMAGES VOLUME CACHE ADMIN FILE      PHASE: online, or any name for a phase with upstream unwell

FILE (JSON) grows by the phase: {"PHASE: name": {"status": 200, "header etag": "…", "body": "…"}}.
"""

import hashlib
import http.client
import json
import pathlib
import re
import sys
import time

import requests

METRIC = re.compile(r"registry_proxy_(requests|hits|misses|pulled_bytes|pushed_bytes)_total\{")


def ask(address, method, path, headers):
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        try:
            return answer, answer.read()
        except http.client.IncompleteRead as short:
            return answer, short.partial + b" (cut short)"
    finally:
        connection.close()


def facts(answer, body):
    """Everything that a client can see. What can't be the same twice (a date, a boundary) is left out."""
    boundary = re.search(r"boundary=(\S+)", answer.headers.get("Content-Type", ""))
    if boundary:
        body = body.replace(boundary[1].encode(), b"BOUNDARY")
    found = {"status": answer.status}
    for name in sorted({name.lower() for name in answer.headers} - {"date"}):
        values = " + ".join(answer.headers.get_all(name))
        found[f"header {name}"] = re.sub(r"boundary=\S+", "boundary=BOUNDARY", values)
    found.update(body_facts(answer, body))
    if boundary or "error code" in found:
        found.pop("header content-length", None)  # follows from what is compared piece by piece
    return found


def body_facts(answer, body):
    if "json" in answer.headers.get("Content-Type", "") and b'"errors"' in body:
        first = json.loads(body)["errors"][0]
        parts = {f"error {key}": json.dumps(first[key]) for key in ("code", "message", "detail") if key in first}
        return {**parts, "body": "errors, JSON" + (", newline" if body.endswith(b"\n") else "")}
    if answer.headers.get("Content-Type", "").startswith("text/plain; version=0.0.4"):
        return {"body": "\n".join(sorted(line for line in body.decode().splitlines() if METRIC.match(line)))}
    if len(body) <= 400:
        return {"body": body.decode(errors="replace")}
    return {"body": f"{len(body)} bytes, sha256:{hashlib.sha256(body).hexdigest()}"}


def wait_for(volume, wanted):
    """At most 10 s; the comparison then tells what is missing."""
    value = wanted.digest[7:]
    root = pathlib.Path(volume, "docker/registry/v2")
    link = root / "repositories" / wanted.repository / "_layers/sha256" / value / "link"
    for _ in range(100):
        if (root / "blobs/sha256" / value[:2] / value / "data").exists() and link.exists():
            return
        time.sleep(0.1)


def main():
    phase, images, volume, cache, admin, file = sys.argv[1:]
    samples = requests.Samples(images)
    path = pathlib.Path(file)
    answers = json.loads(path.read_text()) if path.exists() else {}
    listed = requests.online(samples) if phase == "online" else requests.unwell(samples, phase)
    for address, items in ((admin, requests.ADMIN if phase == "online" else []), (cache, listed)):
        for item in items:
            if isinstance(item, requests.Wait):
                ask(address, "GET", f"/v2/{item.repository}/blobs/{item.digest}", {})
                wait_for(volume, item)
                continue
            name, *request = item
            answers[f"{phase}: {name}"] = facts(*ask(address, *request))
    path.write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
