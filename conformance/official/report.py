#!/usr/bin/env python3
"""Reads what the official suite reports, because its exit code lies (0 after a set-up error, 2 after it has reported).

    report.py whole MODE REPORTS     every run of MODE has reported, in text and in junit.xml, and both say the same
    report.py clean MODE REPORTS     nothing failed but pushes that the upstream of MODE is known to refuse (upstream.txt)
    report.py count MODE REPORTS     at least as many passed, and at most as many were left out, as the last time (expected.txt)
    report.py table REPORTS MODE...  the counts, for people

A run of MODE is a folder REPORTS/MODE/RUN with report.txt, the suite's output, and the files the suite writes.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).parent
TOP = "OCI Conformance Test"
NODE = re.compile(rf"( *)({TOP}(?:/[^:]*)?): (Pass|FAIL|Skip|Disabled|Error|Unknown)")
IN_JUNIT = {"passed": {"Pass"}, "skipped": {"Skip", "Disabled"}, "failure": {"FAIL"}, "error": {"Error", "Unknown"}}
# Pull and discovery are larder's; only these steps of a test can be excused by what an upstream can't do.
PUSH = re.compile(r"/push/manifest-by-(digest|tag)$|/blob-(post|patch|mount)[^/]*$|/manifest-put$")
# With pushes switched off the suite fails to write junit.xml unless it runs the data tests alone.
WITHOUT_JUNIT = {"ping", "empty", "missing-manifest", "invalid-digest-format"}

Test = collections.namedtuple("Test", "name status messages")


def runs(mode, reports):
    folders = sorted(path for path in (pathlib.Path(reports) / mode).iterdir() if path.is_dir())
    if not folders:
        sys.exit(f"{mode}: no run has left a report")
    return folders


def tests_of(folder):
    """The leaves of the tree between `Test results` and `Configuration:`."""
    path = folder / "report.txt"
    _, begin, block = path.read_text(errors="replace").partition("Test results\n")
    block, end, rest = block.partition("\nConfiguration:\n")
    if not (begin and end and "OCI Conformance Result:" in rest):
        sys.exit(f"{path}: the suite has not reported")
    nodes = []
    for line in block.splitlines():
        if found := NODE.fullmatch(line):
            nodes.append((len(found[1]), found[2], found[3], []))
        elif nodes:
            nodes[-1][3].append(line.strip())
    leaves = [
        Test(name.removeprefix(TOP + "/"), status, messages)
        for (depth, name, status, messages), (next_depth, *_) in zip(nodes, [*nodes[1:], (0,)])
        if next_depth <= depth
    ]
    if len(leaves) < 1 or nodes[0][1] != TOP:
        sys.exit(f"{path}: no test in the report")
    return leaves


def tests_of_all(mode, reports):
    return [test for folder in runs(mode, reports) for test in tests_of(folder)]


def table_of(file):
    """The lines of a file of ours, without comments."""
    lines = ((HERE / file).read_text()).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def whole(mode, reports):
    for folder in runs(mode, reports):
        tests = tests_of(folder)
        path = folder / "junit.xml"
        if folder.name in WITHOUT_JUNIT and not (path.exists() and path.stat().st_size):
            continue
        cases = [case.get("status") for case in xml.etree.ElementTree.parse(path).iter("testcase")]
        for status, ours in IN_JUNIT.items():
            counted = sum(test.status in ours for test in tests)
            if cases.count(status) != counted:
                sys.exit(f"{path}: {cases.count(status)} {status}, where report.txt has {counted}")


def excused(mode):
    """What may fail in MODE: the names of pushes."""
    return {line.split(maxsplit=1)[1] for line in table_of("upstream.txt") if line.split()[0] == mode}


def is_excused(test, names):
    return test.status == "FAIL" and test.name in names and PUSH.search("/" + test.name)


def clean(mode, reports):
    names = excused(mode)
    failed = [test for test in tests_of_all(mode, reports) if test.status not in ("Pass", "Skip", "Disabled")]
    wrong = [test for test in failed if not is_excused(test, names)]
    for test in wrong:
        print(f"{test.status} {test.name}", *test.messages[:4], sep="\n    ")
    unmet = sorted(names - {test.name for test in failed})
    for name in unmet:
        print(f"fails no more, take it off upstream.txt: {mode} {name}")
    sys.exit(bool(wrong or unmet))


def counts(mode, reports):
    """How many passed, were skipped, were disabled; failed; failed with an excuse."""
    names = excused(mode)
    counted = collections.Counter(
        "excused" if is_excused(test, names) else test.status for test in tests_of_all(mode, reports)
    )
    failed = counted["FAIL"] + counted["Error"] + counted["Unknown"]
    return counted["Pass"], counted["Skip"], counted["Disabled"], failed, counted["excused"]


def expected(mode):
    for line in table_of("expected.txt"):
        if line.split()[0] == mode:
            return tuple(map(int, line.split()[1:4]))
    return None


def count(mode, reports):
    found, known = counts(mode, reports)[:3], expected(mode)
    print(f"{mode}: passed, skipped, disabled: {found}, the last time {known}")
    if known is None or found[0] < known[0] or found[1] > known[1] or found[2] > known[2]:
        sys.exit(1)


def table(reports, *modes):
    row = "{:32}{:>8}{:>8}{:>9}{:>9}{:>10}{:>7}  {}".format
    print(row("mode", "passed", "failed", "refused*", "skipped", "disabled", "total", "").rstrip())
    for mode in modes:
        try:
            passed, skipped, disabled, failed, refused = counts(mode, reports)
        except (SystemExit, OSError):
            print(mode, "no report")
            continue
        total = passed + failed + refused + skipped + disabled
        news = "" if (passed, skipped, disabled) == expected(mode) else "not as in expected.txt"
        print(row(mode, passed, failed, refused, skipped, disabled, total, news).rstrip())
    print("* pushes that the upstream behind larder refuses, by upstream.txt")


if __name__ == "__main__":
    {"whole": whole, "clean": clean, "count": count, "table": table}[sys.argv[1]](*sys.argv[2:])
