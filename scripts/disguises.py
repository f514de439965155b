"""Does the suite `quick` see through disguised networks, and does it leave honest ones in peace?

python -m scripts.disguises run PUBLISHED [FOLDER]           # writes results/disguises.json; resumable
python -m scripts.disguises limit PUBLISHED [FOLDER]         # of these only the disguise that is not seen
python -m scripts.disguises time OTHER PUBLISHED [FOLDER]    # CPU seconds of `quick`, and in another checkout

PUBLISHED: wong_mnist_fgsm.safetensors. The other networks are in results/ or are trained here, in FOLDER.
Needs the full MNIST and CIFAR-10 (ATLAS_DATA).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import atlas
from atlas import data
from atlas.attacks import PGD, RayS
from atlas.data import Images
from atlas.files import write_atomic
from atlas.methods import Adv
from atlas.models import build
from atlas.models.source import load as load_model
from atlas.threat import Threat
from atlas_paper.workspace import commit
from benchmarks.tables import grid
from tests.disguises import DISGUISES, HELD_OUT, Disguised, Hide, best_known, confidence_of, trained

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "disguises.json"
N = 100
GAP = 10
"""Images by which `quick` may miss the best known attack without a warning."""
LINF, L2 = atlas.Linf, atlas.L2


@dataclass(frozen=True)
class Networks:
    """The networks by name, loaded or trained when they are asked for."""

    published: str
    folder: Path

    def get(self, name: str) -> nn.Module:
        if name == "linear MNIST":
            return _linear_mnist()
        makers = {
            "natural MNIST": _natural_mnist,
            "natural CIFAR": lambda: _natural_cifar("cnn-small"),
            "natural CIFAR WRN": lambda: _natural_cifar("wrn-10-1"),
            "L2 ADV-5 MNIST": _l2_mnist,
        }
        if name in makers:
            path = self.folder / f"{name}.safetensors"
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                torch.manual_seed(0)
                write_atomic(path, save(makers[name]().state_dict()))
        elif name == "published MNIST":
            path = Path(self.published)
        else:
            path = ROOT / "results" / name / "best.safetensors"
        of_cifar = "cifar" in name.lower()
        model = "wrn-10-1" if of_cifar and name != "natural CIFAR" else "cnn-small"
        shape = (3, 32, 32) if of_cifar else (1, 28, 28)
        return load_model(path, name=model, shape=shape).requires_grad_(False)


def _natural_mnist() -> nn.Module:
    return trained(build("cnn-small"), data.load("mnist-mini"), 3)


def _natural_cifar(name: str) -> nn.Module:
    normalize = ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
    network = build(name, shape=(3, 32, 32), normalize=normalize)
    return trained(network, data.load("cifar10").subset(slice(10_000)), 6)


def _l2_mnist() -> nn.Module:
    method, images = Adv(attack=PGD(steps=5)), data.load("mnist-mini")
    return atlas.fit(build("cnn-small"), images, method, threat=L2(1.5), epochs=8, progress=False).model


def _linear_mnist() -> nn.Module:
    torch.manual_seed(0)
    return trained(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), data.load("mnist-mini"), 5)


BASES: dict[str, tuple[Threat, Threat]] = {
    "natural MNIST": (LINF(0.1), L2(1.0)),
    "published MNIST": (LINF(0.3), L2(2.0)),
    "natural CIFAR": (LINF(2 / 255), L2(0.25)),
}
HONEST: dict[str, tuple[Threat, ...]] = {
    **BASES,
    "natural CIFAR WRN": (LINF(1 / 255), LINF(8 / 255)),
    "L2 ADV-5 MNIST": (L2(1.5), LINF(0.1)),
    "mnist/quick-adv-1": (LINF(0.3),),
    "mnist/quick-atlas-1": (LINF(0.3), L2(2.0)),
    "mnist/quick-trades-1": (LINF(0.3),),
    "table1-mnist-cpu/runs/mnist-small-adv-20": (LINF(0.3), L2(1.5)),
    "table1-mnist-cpu/runs/mnist-small-atlas-20": (LINF(0.3),),
    "table1-mnist-cpu/runs/mnist-small-trades-20": (LINF(0.3),),
    "table1-cifar10-cpu/runs/cifar10-adv-1": (LINF(8 / 255), L2(0.5)),
    "table1-cifar10-cpu/runs/cifar10-atlas-1": (LINF(8 / 255),),
}


def cases() -> list[tuple[str, str, Threat]]:
    """(disguise, network, threat): those held out at all six places, the others at two of them in turn."""
    honest = [("", name, threat) for name, threats in HONEST.items() for threat in threats]
    places = [(base, threat) for k in (0, 1) for base, threats in BASES.items() for threat in (threats[k],)]
    first, second = (
        [(name, *places[(k + shift) % 6]) for k, name in enumerate(DISGUISES)] for shift in (0, 4)
    )
    held_out = [(name, *place) for place in places for name in HELD_OUT]
    return honest + held_out + first + second


def images_of(network: str) -> Images:
    return data.load("cifar10" if "cifar" in network.lower() else "mnist", train=False).subset(slice(N))


def run(published: str, folder: Path) -> None:
    networks = Networks(published, folder)
    rows = json.loads(RESULTS.read_text()).get("rows", []) if RESULTS.exists() else []
    done = {(row["disguise"], row["network"], row["threat"]) for row in rows}
    about = {"command": "python -m scripts.disguises run wong_mnist_fgsm.safetensors", "n": N, "seed": 0}
    for name, network, threat in cases():
        if (name, network, str(threat)) in done:
            continue
        record = row(networks.get(network), (DISGUISES | HELD_OUT).get(name, _nothing), network, threat)
        case = {"disguise": name, "network": network, "threat": str(threat), "held_out": name in HELD_OUT}
        rows.append(case | record | {"commit": commit()})
        print(json.dumps(rows[-1]), flush=True)
        keep(about | {"rows": rows})


def _nothing(f: nn.Module, x: Tensor) -> Tensor:
    return f(x)  # type: ignore[no-any-return]


def row(net: nn.Module, hide: Hide, network: str, threat: Threat) -> dict[str, Any]:
    """What `quick` and then the best known attacks leave of the images, and the warnings of `quick`."""
    model, images = Disguised(net, hide), images_of(network)
    begun = time.process_time()
    report = atlas.evaluate(model if hide is not _nothing else net, images, threat, progress=False)
    seconds = time.process_time() - begun
    left = best_known(model, images, report.robust, threat)
    return {
        "clean": int(report.clean_right.sum()),
        "quick": int(report.robust.sum()),
        "best": int(list(left.values())[-1].sum()),
        "left_by": {label: int(report.right_under(label).sum()) for label in report.results}
        | {label: int(right.sum()) for label, right in left.items()},
        "flags": [flag.name for flag in report.flags],
        "fatal": [flag.name for flag in report.flags if flag.fatal],
        "seconds": round(seconds, 2),
    }


PAIRS = (
    ("L2 ADV-5 MNIST", "natural MNIST", LINF(0.15)),
    ("natural MNIST", "linear MNIST", LINF(0.15)),
    ("L2 ADV-5 MNIST", "linear MNIST", LINF(0.15)),
    ("natural MNIST", "linear MNIST", LINF(0.1)),
)
"""Networks that give the answers, networks that give the confidence, and the threat."""


def limit(published: str, folder: Path) -> None:
    """A disguise under `quick`, and where that raises no warning, under AutoAttack and RayS."""
    networks, images, rows = Networks(published, folder), images_of("MNIST"), []
    for answers, confidence, threat in PAIRS:
        model = Disguised(networks.get(answers), confidence_of(networks.get(confidence)))
        quick = atlas.evaluate(model, images, threat, progress=False)
        reports = {"`quick`, undisguised": atlas.evaluate(model.net, images, threat, progress=False)}
        reports["`quick`"] = quick
        if not quick.flags:
            rays = {"RayS": RayS(queries=5000)}
            reports["`autoattack`"] = atlas.evaluate(model, images, threat, "autoattack", progress=False)
            reports["RayS, 5000 queries"] = atlas.evaluate(
                model, images, threat, attacks=rays, progress=False
            )
        for name, report in reports.items():
            where = {"answers": answers, "confidence": confidence, "threat": str(threat)}
            flags = [flag.name for flag in report.flags]
            rows.append(where | {"attack": name, "right": int(report.robust.sum()), "flags": flags})
            print(json.dumps(rows[-1]), flush=True)
    keep({"limit": {"commit": commit(), "rows": rows}})


TIMED = {
    "natural MNIST": LINF(0.1),
    "published MNIST": LINF(0.3),
    "natural CIFAR WRN": LINF(8 / 255),
    "table1-cifar10-cpu/runs/cifar10-adv-1": LINF(8 / 255),
}
TIMED_N, REPEATS = 300, 3


def seconds(network: str, published: str, folder: Path) -> float:
    """CPU seconds of `quick` by the code that is imported, probes included, after a short first call."""
    model = Networks(published, folder).get(network)
    name = "cifar10" if "cifar" in network.lower() else "mnist"
    images = data.load(name, train=False).subset(slice(TIMED_N))
    atlas.evaluate(model, images.subset(slice(20)), TIMED[network], progress=False)
    begun = time.process_time()
    atlas.evaluate(model, images, TIMED[network], progress=False)
    return time.process_time() - begun


def compare_times(other: Path, published: str, folder: Path) -> None:
    """The code of another checkout and this one in turn, a process each time."""
    found = {}
    for network in TIMED:
        times: dict[str, list[float]] = {"before": [], "after": []}
        for _ in range(REPEATS):
            for which, code in (("before", other), ("after", ROOT)):
                module = [sys.executable, "-m", "scripts.disguises"]
                command = [*module, "seconds", network, published, str(folder)]
                paths = {"PYTHONPATH": str(code.resolve() / "src")}
                made = subprocess.run(
                    command, cwd=ROOT, env=os.environ | paths, capture_output=True, check=True
                )
                times[which].append(round(float(made.stdout.split()[-1]), 2))
        found[network] = times
        print(network, times, flush=True)
    at = subprocess.run(["git", "rev-parse", "HEAD"], cwd=other, capture_output=True, text=True, check=True)
    keep({"times": {"n": TIMED_N, "before": at.stdout[:12], "after": commit(), "seconds": found}})


def keep(more: dict[str, Any]) -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_atomic(RESULTS, (json.dumps(found | more, indent=1) + "\n").encode())


def passes(row: Mapping[str, Any]) -> bool:
    """The worst case by `quick` is near the best known attack, or a warning names the doubt."""
    return row["quick"] - row["best"] <= GAP or bool(set(row["flags"]) - {"class-at-zero", "constant"})


def tables() -> dict[str, str]:
    """For docs/results/evaluation-checks.md, by name."""
    found = json.loads(RESULTS.read_text())
    disguised = [row for row in found["rows"] if row["disguise"]]
    honest = [row for row in found["rows"] if not row["disguise"]]
    lines = []
    for network, threats in BASES.items():
        for threat in map(str, threats):
            rows = [r for r in disguised if (r["network"], r["threat"]) == (network, threat)]
            lines.append([network, threat, *counts(rows)])
    lines.append(["all", "", *counts(disguised)])
    lines.append(["held out", "", *counts([row for row in disguised if row["held_out"]])])
    heads = ["network", "threat", "cases", "within 10 points", "further off, with a warning", "missed"]
    models = [
        [
            f"`{r['network']}`",
            r["threat"],
            f"{r['clean']}%",
            f"{r['quick']}%",
            f"{r['best']}%",
            _named(r["flags"]),
        ]
        for r in honest
    ]
    limits = [
        [r["answers"], r["confidence"], r["threat"], r["attack"], f"{r['right']}%", _named(r["flags"])]
        for r in found["limit"]["rows"]
    ]
    times = [
        [f"`{network}`", *(f"{min(each[w]):.1f}" for w in ("before", "after")), f"{ratio(each):.2f}"]
        for network, each in found["times"]["seconds"].items()
    ]
    return {
        "disguises": grid(heads, lines),
        "honest": grid(["model", "threat", "clean", "`quick`", "best known", "warnings"], models),
        "limit": grid(["answers", "confidence", "threat", "attack", "right", "warnings"], limits),
        "times": grid(["model", "before", "after", "ratio"], times),
    }


def _named(flags: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in flags)


def counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    near = sum(row["quick"] - row["best"] <= GAP for row in rows)
    missed = sum(not passes(row) for row in rows)
    return [str(n) for n in (len(rows), near, len(rows) - near - missed, missed)]


def ratio(times: Mapping[str, Sequence[float]]) -> float:
    return min(times["after"]) / min(times["before"])


def main() -> None:
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["run", published, *where]:
            run(published, _folder(where))
            limit(published, _folder(where))
        case ["limit", published, *where]:
            limit(published, _folder(where))
        case ["time", other, published, *where]:
            compare_times(Path(other), published, _folder(where))
        case ["seconds", network, published, folder]:
            print(seconds(network, published, Path(folder)))
        case _:
            sys.exit(__doc__)


def _folder(where: Sequence[str]) -> Path:
    return Path(where[0] if where else "runs/disguises").resolve()


if __name__ == "__main__":
    main()
