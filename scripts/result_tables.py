"""The tables and figures of the documentation, from results/. The site renders them when it is built.

python -m scripts.result_tables            # the names of all
python -m scripts.result_tables order      # one of them, as Markdown
python -m scripts.result_tables readme     # puts the one of the README there, which is no page of the site
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atlas.evaluation import Report, Score
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluation_folder import load_report
from atlas.reports import plots
from benchmarks import attack, compare_steps, growth, scale, step, time_to_accuracy
from benchmarks.tables import grid, markdown, markers_of, put_between_markers
from scripts import disguises, levers, precision, reliability, results
from scripts import untargeted_optimizers as optimizers

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
CNN = "table1-mnist-cpu-cnn-trained-bfloat16-all-attacked-bfloat16"
SETTINGS = {
    "MNIST, `cnn-small`": (["table1-mnist-cpu"], 1),
    "MNIST, `cnn`": ([CNN, f"{CNN}-more"], 1),
    "MNIST, `cnn-small`, tuned, 10 epochs": (["table1-mnist-cpu-tuned-ten"], 1),
    "MNIST, `cnn-small`, tuned, 30 epochs": (["table1-mnist-cpu-tuned"], 1),
    "CIFAR-10, small": (["table1-cifar10-cpu"], 1),
    "CIFAR-100, small": (["table1-cifar100-cpu"], 1),
    "MNIST, `cnn-small`, twenty-step": (["table1-mnist-cpu"], 20),
    "MNIST, `cnn-small`, twenty-step, tuned, 30 epochs": (["table1-mnist-cpu-tuned-twenty"], 20),
}
"""Lines of `order`: the folders whose tables have its rows, and the steps of their adversaries."""
QUICK = "MNIST, `cnn-small`, quick settings"
IN_README = (QUICK, "MNIST, `cnn-small`, tuned, 30 epochs", "CIFAR-10, small")
METHODS, OTHERS = ("adv", "trades", "atlas"), ("adv", "trades")
ATTACK = "AutoAttack"
COLUMNS = ("clean", "PGD-20", "PGD-1000", "Un-T", "Multi-T", ATTACK, "worst case")
"""Of an artefact's table, those that are shown; Multi-T only where there are few."""
ROOM = 6
LEAST_P = 1e-6
"""Smaller ones are not told apart: of one training each they would promise too much."""


def readme() -> str:
    """The table of the README. A comparison over several seeds is to take its place."""
    lines = [line.split(" | ")[:5] for line in order(*IN_README).splitlines()]
    return "\n".join(f"{' | '.join(line)} |" for line in lines)


def order(*settings: str) -> str:
    """The order of the methods under AutoAttack, one line per setting."""
    head = ["accuracy in %", "n", "ADV", "TRADES", "ATLAS", "ATLAS - ADV", "ATLAS - TRADES"]
    quick = {method: load_report(RESULTS / "evaluation" / f"quick-{method}-1") for method in METHODS}
    lines = {QUICK: _of_evaluations(quick)}
    lines |= {name: _of_tables(list(map(_read, folders)), k) for name, (folders, k) in SETTINGS.items()}
    return grid(head, [[name, *lines[name]] for name in settings or lines])


def _read(folder: str) -> dict[str, Any]:
    (path,) = (path for path in (RESULTS / folder).glob("*.json") if path.stem in folder)
    return dict(json.loads(path.read_text()))


def _of_tables(parts: list[dict[str, Any]], steps: int) -> list[str]:
    rows = {row["key"]: row for part in parts for row in part["rows"] if _has(row)}
    rows = {method: rows[f"{method}-{steps}"] for method in METHODS}
    cells = [row["cells"][ATTACK] for row in rows.values()]
    tests = {(line[1], line[2]): line for part in parts for line in _paired(part, steps) if line[0] == ATTACK}
    # One seed of each: a paired test is of one.
    ((n, _),) = {(seed["n"], seed["seed"]) for cell in cells for seed in cell["seeds"]}
    accuracies = [_accuracy(cell["ours"], cell["interval"]) for cell in cells]
    return [str(n), *accuracies, *(_tested(tests.get((rows[other]["label"], "0"))) for other in OTHERS)]


def _has(row: dict[str, Any]) -> bool:
    return row["cells"].get(ATTACK, {}).get("ours") is not None


def _paired(part: dict[str, Any], steps: int) -> list[list[Any]]:
    name = "paired" if steps == 1 else "paired-multi-step"
    return list(part["tables"].get(name, {}).get("rows", []))


def _tested(line: list[Any] | None) -> str:
    """None was made where the rows' verdicts are not in one table, or where nobody asked then."""
    return "no paired test" if line is None else _difference(line[6]["value"], line[7]["value"])


def _of_evaluations(reports: Mapping[str, Report]) -> list[str]:
    """Of AutoAttack alone, whose worst case is what it leaves."""
    (n,) = {report.n for report in reports.values()}
    scores = [report.worst for report in reports.values()]
    accuracies = [_accuracy(100 * score.rate, [100 * end for end in score.interval]) for score in scores]
    pairs = [compared(reports["atlas"], reports[other])["worst case"][2] for other in OTHERS]
    return [str(n), *accuracies, *(_difference(100 * pair.difference, pair.p_value) for pair in pairs)]


def _accuracy(percent: float, interval: Sequence[float]) -> str:
    return f"{percent:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def _difference(points: float, p: float) -> str:
    return f"{points:+.1f}, " + (f"p < {LEAST_P:.0e}" if p < LEAST_P else f"p = {p:.2g}")


def artefact(folder: str) -> str:
    """A table of the paper: ours with its interval, and the paper's number below."""
    table = _read(folder)
    rows = [row for row in table["rows"] if any(cell["ours"] is not None for cell in row["cells"].values())]
    columns = [name for name in COLUMNS if any(_ours(row, name) is not None for row in rows)]
    columns = [name for name in columns if len(columns) <= ROOM or name != "Multi-T"]
    lines = [[row["label"], *(_cell(row["cells"].get(name)) for name in columns)] for row in rows]
    sizes = {name: {seed["n"] for row in rows for seed in _seeds(row, name)} for name in columns}
    heads = [f"{name} (n = {min(sizes[name]):,})" if sizes[name] else name for name in columns]
    return grid(["", *heads], lines) + f"\n\n`{table['command']}`, at {table['commit'][:7]}."


def _ours(row: Mapping[str, Any], column: str) -> float | None:
    found: float | None = row["cells"].get(column, {}).get("ours")
    return found


def _seeds(row: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    return [seed for seed in row["cells"].get(column, {}).get("seeds", []) if "n" in seed]


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["ours"] is None:
        return "-"
    marks = "".join(f", {mark}" for mark in cell["marks"])
    paper = "" if cell["paper"] is None else f"<br>({cell['paper']:.2f})"
    return f"{_accuracy(cell['ours'], cell['interval'])}{marks}{paper}"


def summary(folder: str) -> str:
    """The table of a figure of the paper."""
    table = _read(folder)["tables"]["summary"]
    rows = [[cell if isinstance(cell, str) else cell["text"] for cell in row] for row in table["rows"]]
    return grid(table["columns"], rows)


def demo() -> str:
    """What `make demo` printed."""
    rows = json.loads((RESULTS / "demo/demo.json").read_text())
    head = [f"n = {rows[0]['clean']['n']}", "clean", *rows[0]["robust"], "training"]
    scores = [[str(Score(**s)) for s in (row["clean"], *row["robust"].values())] for row in rows]
    return grid(
        head, [[row["method"], *s, f"{row['seconds']:.0f} s"] for row, s in zip(rows, scores, strict=True)]
    )


BENCHMARKS = {
    "step": step,
    "step wrn-28-8": step,
    "peers cnn": compare_steps,
    "growth": growth,
    "time": time_to_accuracy,
    "scale": scale,
    "attack half robust": attack,
    "attack circles": attack,
    "attack stages": attack,
}
"""Measurements, and the module that writes each."""


def stored(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"bench-{name.replace(' ', '-')}.json").read_text()))


def benchmark(name: str) -> str:
    return markdown(BENCHMARKS[name].blocks(stored(name)))


def figure(name: str) -> str:
    """The figure of a measurement as SVG, within Markdown."""
    picture = io.BytesIO()
    with plots.style():
        picture.write(plots.rendered(BENCHMARKS[name].draw(stored(name)), "svg"))
    svg = picture.getvalue().decode()
    return "```{raw} html\n" + svg[svg.index("<svg") :] + "\n```"


TABLES: dict[str, Callable[[], str]] = {
    "order": order,
    "readme": readme,
    "demo": demo,
    **{name: partial(artefact, name) for name in ("table1-cifar10-cpu", "table1-cifar100-cpu")},
    **{name: partial(artefact, name) for name in ("ablation-cifar10-cpu", "ablation-cifar100-cpu")},
    **{f"table1-mnist-cpu{part}": partial(artefact, f"table1-mnist-cpu{part}") for part in ("", "-tuned")},
    "table1-mnist-cpu-tuned-ten": partial(artefact, "table1-mnist-cpu-tuned-ten"),
    "table1-mnist-cpu-tuned-twenty": partial(artefact, "table1-mnist-cpu-tuned-twenty"),
    "table1-mnist-cnn": partial(artefact, CNN),
    "table1-mnist-cnn-more": partial(artefact, f"{CNN}-more"),
    "loss-curves": partial(summary, "loss-curves-cpu"),
    "collapse": partial(summary, "collapse-cpu"),
    **{f"runs {data}": partial(results.mnist_table, data) for data in ("mnist", "mnist-mini")},
    **{
        kind: partial(lambda kind: disguises.tables()[kind], kind)
        for kind in ("disguises", "honest", "limit", "times")
    },
    **{f"un-t {kind}": partial(optimizers.table, kind) for kind in ("linf", "l2", "orders")},
    "autoattack": results.wong_table,
    "faults": reliability.table,
    "precision": precision.table,
    "levers": levers.table,
    **{name: partial(benchmark, name) for name in BENCHMARKS},
    **{f"figure {name}": partial(figure, name) for name in ("growth", "time")},
}
"""Each table by its name."""


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            print("\n".join(TABLES))
        case ["readme"]:
            put_between_markers(ROOT / "README.md", TABLES["readme"](), *markers_of("results"))
        case [name]:
            print(TABLES[name]())
