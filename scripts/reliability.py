"""How many faults were injected, inputs fuzzed and runs resumed, and how many bits differ.

python -m pytest -m slow --timeout 7200 --junitxml=SLOW.xml -o junit_logging=system-out tests/f*
python scripts/soak.py --minutes 120 --json SOAK.json
python -m scripts.reliability keep SLOW.xml SOAK.json         # writes results/reliability.json
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from atlas.files import write_atomic
from benchmarks.tables import grid

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "reliability.json"
KINDS = {"test_config": "configurations", "test_data": "data files", "test_checkpoint": "weights and states"}


def keep(files: list[Path]) -> None:
    """A test that several files have counts as it went in the last: it may have been mended and run again."""
    tests = {
        (test.attrib["classname"], test.attrib["name"]): test
        for path in files
        if path.suffix == ".xml"
        for test in ElementTree.parse(path).getroot().iter("testcase")
    }
    fuzzed: Counter[str] = Counter()
    killed = 0
    for (module, name), test in tests.items():
        if {"failure", "error", "skipped"} & {child.tag for child in test}:
            raise SystemExit(f"{module} {name} did not pass: nothing is kept")
        said = test.findtext("system-out") or ""
        kind = module.rpartition(".")[2]
        fuzzed[KINDS.get(kind, kind)] += said_number(said, "inputs fuzzed")
        killed += said_number(said, "killed and started again")
    found = {
        "tests": len(tests),
        "fuzzed": {kind: count for kind, count in fuzzed.items() if count},
        "killed at chosen moments": killed,
        "soaks": [json.loads(path.read_text()) for path in files if path.suffix == ".json"],
    }
    write_atomic(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


def said_number(text: str, what: str) -> int:
    return sum(int(n) for n in re.findall(rf"^{what}: (\d+)$", text, re.MULTILINE))


def table() -> str:
    found = json.loads(RESULTS.read_text())
    soaks, killed = found["soaks"], found["killed at chosen moments"]
    faults: Counter[str] = Counter()
    for soak in soaks:
        faults.update(soak["of these"])

    def total(what: str) -> int:
        return sum(soak[what] for soak in soaks)

    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    rows = {f"inputs fuzzed: {kind}": f"{count:,}" for kind, count in found["fuzzed"].items()}
    rows |= {
        "faults injected": f"{killed + total('faults injected'):,}: {killed} kills at chosen moments, by the "
        f"tests; {total('faults injected'):,} in soaks ({kinds})",
        "runs resumed": f"{killed + total('runs resumed'):,}",
        "soaks": ", ".join(f"{soak['minutes']:.0f} minutes with seed {soak['seed']}" for soak in soaks),
        "trainings and evaluations of the soaks, compared": f"{total('rounds compared'):,} of each",
        "bits differing": str(total("bits differing")),
        "memory at a soak's end": ", ".join(
            f"{soak['memory in MB']} MB, {soak['MB more than after the warm-up']} MB more than when warm"
            for soak in soaks
        ),
    }
    return grid(["what", "how many"], list(rows.items()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", *files] if files:
            keep(list(map(Path, files)))
        case _:
            sys.exit(__doc__)
