"""What README and docs say in words about the results, and that no measured share is typed into a sentence.

The tables are rendered from results/ when the site is built: `scripts/result_tables.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from atlas.evaluation import Score
from atlas.evaluation.evaluation_folder import load_report
from atlas_paper import paper
from benchmarks.equations import case
from scripts.result_tables import CNN, IN_README, METHODS, QUICK, SETTINGS, order, stored
from tests.published import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
TABLES_OF_MNIST = sorted((ROOT / "results").glob("table1-mnist-*/table1-mnist.json"))
STRONG = ("PGD-1000", "Un-T", "Multi-T", "AutoAttack")
CONVENTIONS = {"95%"}
"""What is no measurement: the level of all intervals."""


def read(path: str) -> Any:
    return json.loads((ROOT / "results" / path).read_text())


def prose(page: str) -> str:
    """The page's sentences, without tables, code and what scripts put between markers, on one line."""
    text = re.sub(
        r"<!-- begin: .*?<!-- end: .*?-->|```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL
    )
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    return re.sub(r"\*\*|`[^`]*`|\]\([^)]*\)", "", " ".join(" ".join(lines).split()))


@pytest.mark.parametrize("page", PAGES)
def test_no_measured_share_is_typed_into_a_sentence(page: str) -> None:
    assert set(re.findall(r"[\d.]+%", prose(page))) <= CONVENTIONS, "put it into a table of results/"


def of_table(folder: str, row: str, column: str = "AutoAttack") -> float:
    """Our accuracy of a cell of Table 1 on MNIST."""
    (found,) = (each for each in read(f"{folder}/table1-mnist.json")["rows"] if each["key"] == row)
    return float(found["cells"][column]["ours"])


def of_run(name: str, attack: str) -> float:
    score = read(f"mnist/{name}/scores.json")[attack]
    return 100 * score["right"] / score["n"]


def epochs(run: str) -> list[dict[str, Any]]:
    records = map(json.loads, (ROOT / "results" / run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "epoch"]


# docs/results/index.md and README.md


def differences(other: int) -> dict[str, tuple[float, float]]:
    """ATLAS minus ADV (0) or TRADES (1) of the one-step settings, and p, as the table has them."""
    found = {}
    for line in order().splitlines()[2:]:
        name, _, *accuracies = [cell.strip() for cell in line.strip("| ").split("|")]
        adv, trades, atlas = (float(text.split()[0]) for text in accuracies[:3])
        test = re.search(r"p [=<] (\S+)", accuracies[3 + other])
        if "twenty-step" not in name:
            found[name] = (atlas - (adv, trades)[other], float(test[1]) if test else float("nan"))
    return found


def test_the_order_of_the_methods_in_words() -> None:
    over_trades = [points > 0 for points, _ in differences(1).values()]
    assert (sum(over_trades), len(over_trades)) == (3, 7)
    better = [name for name, (points, p) in differences(0).items() if points > 0 and p < 0.05]
    assert better == ["MNIST, `cnn-small`, tuned, 10 epochs"], "above ADV beyond chance in one"
    for setting in ("MNIST, `cnn-small`", "MNIST, `cnn`"):
        assert differences(0)[setting][0] < 0 > differences(1)[setting][0], "last with the paper's settings"
    assert {QUICK, *SETTINGS} >= set(IN_README)


# docs/results/mnist.md and records/mnist.md


def test_the_one_step_rows_with_the_papers_settings() -> None:
    for column in STRONG:
        adv, trades, atlas = (of_table("table1-mnist-cpu", f"{method}-1", column) for method in METHODS)
        assert atlas < adv
        assert max(adv, trades, atlas) < 50, "none is robust"
        larger = [of_table(f"{CNN}-more" if m == "trades" else CNN, f"{m}-1", column) for m in METHODS]
        assert larger == sorted(larger, reverse=True), "ADV, TRADES, ATLAS"
        twenty = {method: of_table("table1-mnist-cpu", f"{method}-20", column) for method in METHODS}
        assert max(twenty, key=twenty.__getitem__) == "atlas"
        assert twenty["trades"] < 1


def test_the_quick_rows_reach_the_papers_pgd_and_square_finds_more_of_atlas() -> None:
    for method in METHODS:
        over = {
            name: of_run(f"quick-{method}-1", name) - (paper.number("mnist", f"{method}-1", name) or 0)
            for name in ("PGD-20", "PGD-1000")
        }
        assert abs(over["PGD-20"]) < 1
        assert over["PGD-1000"] > 0
    asked = {name: load_report(ROOT / "results/evaluation" / f"quick-{name}-1") for name in METHODS}
    found = {name: int(report.results["Square"].fooled.sum()) for name, report in asked.items()}
    assert max(found, key=found.__getitem__) == "atlas"


def test_the_tuned_one_step_rows() -> None:
    for column in STRONG:
        adv, trades, atlas = (of_table("table1-mnist-cpu-tuned", f"{method}-1", column) for method in METHODS)
        assert atlas < min(adv, trades)
        assert of_table("table1-mnist-cpu-tuned-ten", "atlas-1", column) > of_table(
            "table1-mnist-cpu-tuned-ten", "adv-1", column
        )


def test_another_number_of_threads_moves_a_row_by_several_points() -> None:
    pairs = [(f"mini-{method}", f"mini-{method}-2threads") for method in ("adv", "atlas")]
    moved = [of_run(b, c) - of_run(a, c) for a, b in pairs for c in ("PGD-1000", "margin 5x50")]
    assert min(map(abs, moved)) > 5


def test_trades_is_robust_where_its_training_sees() -> None:
    assert read("evaluation/trades-20-at-0.2/summary.json")["accuracy"]["Un-T 3x50"]["rate"] > 0.8


def test_un_t_finds_less_than_pgd_1000_in_the_paper_and_more_here() -> None:
    """In every row of every table on MNIST: docs/results/mnist.md says so."""
    rows = [row for path in TABLES_OF_MNIST for row in json.loads(path.read_text())["rows"]]
    cells = [(row["cells"]["Un-T"], row["cells"]["PGD-1000"]) for row in rows]
    assert all(un_t["paper"] > pgd["paper"] for un_t, pgd in cells)
    ours = [(un_t["ours"], pgd["ours"]) for un_t, pgd in cells if None not in (un_t["ours"], pgd["ours"])]
    assert len(ours) > 12
    assert all(un_t < pgd for un_t, pgd in ours)


def test_un_t_on_jac_is_another_attack_than_the_papers() -> None:
    """More than ten times what PGD-1000 leaves in the paper, less than a third here."""
    theirs = {column: paper.number("mnist", "jac", column) or 0.0 for column in ("Un-T", "PGD-1000")}
    assert theirs["Un-T"] > 10 * theirs["PGD-1000"]
    assert of_table(f"{CNN}-more", "jac", "Un-T") < of_table(f"{CNN}-more", "jac", "PGD-1000") / 3


def test_seeds_and_quick_settings_move_a_row_by_tens_of_points() -> None:
    """What docs/results/mnist.md ends with."""
    written, seed1 = (of_run(f"written-atlas-1{name}", "PGD-1000") for name in ("", "-seed1"))
    assert seed1 - written > 60
    for method in ("adv", "atlas"):
        settings = of_run(f"quick-{method}-1", "PGD-1000") - of_run(f"written-{method}-1", "PGD-1000")
        large, small = (of_table(f, f"{method}-1", "PGD-1000") for f in (CNN, "table1-mnist-cpu"))
        network = large - small
        assert settings > network > 20


def test_the_search_found_nothing_better_than_it_started_from() -> None:
    """The quick presets against the tuned ones, of ten and of thirty epochs."""
    for method in ("adv", "trades", "atlas"):
        quick = max(record["val_robust"] for record in epochs(f"mnist/quick-{method}-1"))
        for version in ("tuned", "tuned-ten"):
            folder = f"table1-mnist-cpu-{version}"
            (run,) = (ROOT / "results" / folder / "runs").glob(f"*-{method}-1*")
            best = max(record["val_robust"] for record in epochs(f"{folder}/runs/{run.name}"))
            assert quick > best or method == "trades"
            assert of_run(f"quick-{method}-1", "PGD-1000") > of_table(folder, f"{method}-1", "PGD-1000")


def test_the_order_of_the_tuned_twenty_step_rows() -> None:
    """TRADES, ATLAS, ADV; TRADES near the paper under its PGD attacks, all above the other tables' rows."""
    folder = "table1-mnist-cpu-tuned-twenty"
    for column in ("PGD-1000", "Un-T", "Multi-T", "AutoAttack"):
        adv, trades, atlas = (of_table(folder, f"{method}-20", column) for method in METHODS)
        assert trades > atlas > adv
        written = max(of_table("table1-mnist-cpu", f"{method}-20", column) for method in METHODS)
        assert adv > written
    for column in ("PGD-20", "PGD-1000"):
        assert of_table(folder, "trades-20", column) > (paper.number("mnist", "trades-20", column) or 0) - 1
    lines = read(f"{folder}/table1-mnist.json")["tables"]["paired-multi-step"]["rows"]
    chances = sorted(line[7]["value"] for line in lines)
    assert len(chances) >= 8
    assert all(p * (len(chances) - k) < 0.05 for k, p in enumerate(chances)), "Holm's correction"
    one_step = [of_table("table1-mnist-cpu-tuned", f"{method}-1") for method in METHODS]
    assert of_table(folder, "adv-20") > max(one_step)


def test_the_falls_of_the_collapse_pair() -> None:
    """By epoch, counted from 1: validation accuracy in points, and the squared Jacobian norm."""
    pair = {"collapse-cpu/runs/mnist-small-atlas-1-alpha0-beta1": (7, 9, 18, 43, 82)}
    pair |= {"mnist/written-atlas-1": (11, 13, 10, 56, 96)}
    for run, (first, last, fall, low, high) in pair.items():
        before, after = epochs(run)[first - 1], epochs(run)[last - 1]
        assert round(100 * (before["val_robust"] - after["val_robust"])) == fall
        assert [round(record["jacobian"]) for record in (before, after)] == [low, high]


def test_trades_on_cifar_is_judged_at_the_end_of_the_ramp() -> None:
    for name in ("cifar10", "cifar100"):
        best = {}
        for method in ("adv", "trades", "atlas"):
            course = epochs(f"table1-{name}-cpu/runs/{name}-{method}-1")
            best[method] = max(course, key=lambda record: record["val_robust"])["epoch"] + 1
        assert best["trades"] == 10
        assert min(best["adv"], best["atlas"]) >= 17


# docs/results/cifar.md


def test_cifar_in_words() -> None:
    for name in ("cifar10", "cifar100"):
        table = read(f"table1-{name}-cpu/table1-{name}.json")
        columns = [column for column in STRONG if column in table["rows"][1]["cells"]]
        rows = {row["key"]: {c: row["cells"][c]["ours"] for c in columns} for row in table["rows"]}
        lines = {(line[0], line[1]): line[7]["value"] for line in table["tables"]["paired"]["rows"]}
        for column in columns:
            assert rows["atlas-1"][column] > rows["trades-1"][column]
            assert lines[column, "one-step TRADES"] < 0.05 < lines[column, "one-step ADV"]


# docs/results/speed.md and records/speed.md


def test_steps_cost_what_their_passes_say() -> None:
    for name in ("step", "step wrn-28-8"):
        (model,) = stored(name)["models"]
        methods = {each["method"]: each for each in model["methods"]}
        assert all(each["step_over_bare"][1] < 1.05 for each in methods.values())
        assert 2 < methods["atlas-1"]["step_over_reference"][1] < 2.5, "a little over twice"
    (cnn,) = stored("step")["models"]
    times = {each["method"]: each["step_ms"][1] for each in cnn["methods"]}
    assert 0.4 < times["atlas-1"] / times["adv-10"] < 0.6, "half of ten-step ADV"
    small = stored("scale")["models"][2]
    adv, atlas = (np.median(each["seconds"]["alone"]) for each in small["methods"])
    assert small["model"] == "wrn-10-1"
    assert atlas / adv > 2.5, "more on small residual networks"
    for task in ("mnist", "cifar10"):
        ours, theirs = (paper.number(task, f"{m}-1", paper.TIME) or 0 for m in ("atlas", "adv"))
        assert 2 <= ours / theirs <= 3


def test_attacks_beside_others_in_words() -> None:
    (model,) = stored("attack half robust")["models"]
    tables = {each["attack"]: {c["who"]: c for c in each["contestants"]} for each in model["attacks"]}
    peers = {"torchattacks", "foolbox", "ART", "adv-lib", "pyautoattack"}
    gain = {
        name: min(each["over_ours"][1] for who, each in table.items() if who in peers)
        for name, table in tables.items()
    }
    assert max(gain, key=gain.__getitem__).startswith("PGD-1000")
    (autoattack,) = (ratio for name, ratio in gain.items() if name.startswith("AutoAttack"))
    assert 0.3 < 1 - 1 / autoattack < 0.4, "about a third of the time is saved"
    (un_t,) = (table for name, table in tables.items() if name.startswith("Un-T"))
    left = {who: np.mean(each["robust"]) for who, each in un_t.items() if each["robust"]}
    assert abs(left["ours, one restart"] - min(left[who] for who in peers & left.keys())) < 0.5


def test_scaling_in_words() -> None:
    kept, busy = (stored(name)["models"] for name in ("scale", "scale busy"))
    for quiet, loud in zip(kept, busy, strict=True):
        assert quiet["elsewhere"] < 0.1 < loud["elsewhere"]
    assert kept[0]["methods"][0]["together_over_alone"][1] < 1, "the smallest loses"
    steps = [each for each in stored("cost")["check"]["steps"] if each["together"] > 0.1]
    assert all(0.05 < 1 - each["predicted"] / each["together"] < 0.15 for each in steps), "about a tenth"


# how-to guides and others


def test_the_passes_of_the_methods_in_words() -> None:
    """docs/how-to/train-on-your-data.md: what methods cost beside plain training."""
    cost = {label: case(label).cost or 0 for label in ("natural", "adv-1", "trades-1", "atlas-1", "adv-10")}
    assert all(1.5 < cost[f"{method}-1"] / cost["natural"] < 4 for method in METHODS)
    assert 7 < cost["adv-10"] / cost["natural"] < 8.5


def test_how_wide_an_interval_is() -> None:
    """docs/how-to/gate-in-ci.md."""
    for n, width in {200: 14, 1000: 6}.items():
        low, high = Score(n // 2, n).interval
        assert round(100 * (high - low)) == width


def test_the_disguises_in_words() -> None:
    honest = {(r["network"], r["threat"]): r for r in read("disguises.json")["rows"] if not r["disguise"]}
    ahead = [row for row in honest.values() if "far-ahead" in row["flags"]]
    assert [row["quick"] - row["best"] <= 10 for row in ahead] == [True, False]
    limit = [row for row in read("disguises.json")["limit"]["rows"] if row["attack"] == "`quick`"]
    assert sorted(bool(row["flags"]) for row in limit) == [False, False, True, True]
