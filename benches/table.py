#!/usr/bin/env python3
"""Prints the raw lines of serve.sh (`CASE SERVER FIGURE=VALUE...`) as a Markdown table of medians with (min-max)."""

import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

figures = defaultdict(lambda: defaultdict(list))
columns = defaultdict(dict)
units = {}
for line in Path(sys.argv[1]).read_text().splitlines():
    case, server, *pairs = line.split()
    for name, value in (pair.split("=", 1) for pair in pairs):
        number, unit = re.fullmatch(r"(-?[\d.]+|nan)(x?)", value).groups()
        figures[case, server][name].append((float(number), len(number.partition(".")[2])))
        columns[case][name] = None
        units[name] = unit


def cell(name, values):
    numbers, digits = [number for number, _ in values], max(digits for _, digits in values)
    text = f"{statistics.median(numbers):.{digits}f}{units[name]}"
    if min(numbers) == max(numbers):
        return text
    return f"{text} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"


groups = defaultdict(list)
for case, names in columns.items():
    groups[tuple(names)].append(case)
for names, cases in groups.items():
    print(f"\n| case | server | {' | '.join(names)} |")
    print(f"|---|---|{'---|' * len(names)}")
    for case in cases:
        for server in dict.fromkeys(server for other, server in figures if other == case):
            found = figures[case, server]
            print(f"| {case} | {server} | {' | '.join(cell(name, found[name]) for name in names)} |")
