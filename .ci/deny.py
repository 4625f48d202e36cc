#!/usr/bin/env python3
"""Checks the licences, bans and duplicates of deny.toml without cargo-deny. Advisories need cargo-deny itself."""

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path


def packages(target):
    """(name, version, licence) of everything that is built into larder on that target."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,build", "--target", target]
    command += ["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = set()
    for line in lines:
        package, licence = line.split("|", 1)
        name, version = package.split()[:2]
        found.add((name, version.removeprefix("v"), licence))
    return found


def is_allowed(expression, allowed):
    """Whether an SPDX expression of OR and AND can be met; `WITH` exceptions only widen a licence."""
    text = re.sub(r"\s+WITH\s+\S+", "", expression.replace("/", " OR "))
    tokens = re.findall(r"[()]|[^\s()]+", text)
    words = {"OR": " or ", "AND": " and ", "(": "(", ")": ")"}
    return bool(tokens) and eval("".join(words.get(token, str(token in allowed)) for token in tokens))


def main():
    rules = tomllib.loads(Path("deny.toml").read_text())
    found = set().union(*(packages(target) for target in rules["graph"]["targets"]))
    banned = {ban["crate"] for ban in rules["bans"]["deny"]}
    skipped = {skip["crate"] for skip in rules["bans"]["skip"]}
    versions = defaultdict(set)
    problems = []
    for name, version, licence in sorted(found):
        versions[name].add(version)
        if not is_allowed(licence, set(rules["licenses"]["allow"])):
            problems.append(f"{name} {version}: licence `{licence}` is not allowed")
        if name in banned:
            problems.append(f"{name} {version}: banned")
    for name, several in versions.items():
        excused = {f"{name}@{version}" for version in several} & skipped
        if len(several) - len(excused) > 1:
            problems.append(f"{name}: several versions: {', '.join(sorted(several))}")
    unused = [skip for skip in skipped if skip.split("@")[1] not in versions[skip.split("@")[0]]]
    problems += [f"{skip}: skipped in deny.toml, but not a dependency any more" for skip in unused]
    print("\n".join(problems) or f"{len(found)} packages keep to deny.toml (advisories not checked)")
    return bool(problems)


sys.exit(main())
