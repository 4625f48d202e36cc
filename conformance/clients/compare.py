#!/usr/bin/env python3
"""Compares the answers of larder with those of a registry it replaces, and knows which differences are meant.

    compare.py REFERENCE THEIRS OURS [--all]      REFERENCE: 3.1.1 or 2.8; files of record.py

Prints every difference that differences.py doesn't name, and every entry there that no longer happens; exits 1 if there
is any. With --all it prints the expected ones too, each with its reason.
"""

import json
import pathlib
import sys

from differences import MEANT


def differences(theirs, ours):
    for request in theirs:
        before, after = theirs[request], ours.get(request, {})
        for field in sorted({*before, *after}):
            if before.get(field) != after.get(field):
                yield request, field, before, after


def main():
    reference, *files = sys.argv[1:4]
    theirs, ours = (json.loads(pathlib.Path(path).read_text()) for path in files)
    meant = [entry for entry in MEANT if entry.of in (reference, "both")]
    needed, surprises = set(), 0
    for request, field, before, after in differences(theirs, ours):
        reason = next((entry for entry in meant if entry.covers(request, field, before, after)), None)
        needed.add(reason)
        if reason is None or "--all" in sys.argv:
            print(f"{request}, {field}: {reference} {before.get(field)!r}, larder {after.get(field)!r}")
            print(f"    {reason.why if reason else 'NOT EXPECTED'}")
        surprises += reason is None
    for entry in meant:
        if entry not in needed:
            print(f"happens no more, take it off the list: {entry}")
            surprises += 1
    print(f"{surprises} surprises")
    sys.exit(surprises > 0)


if __name__ == "__main__":
    main()
