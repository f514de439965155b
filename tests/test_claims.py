"""Numbers in the sentences of README and docs: each is one of results/, and no percentage is left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from atlas.evaluation.compare import compared
from atlas.evaluation.evaluation_folder import load_report
from atlas_paper import paper
from tests.published import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
CNN = "table1-mnist-cpu-cnn-trained-bfloat16-all-attacked-bfloat16"
TABLES_OF_MNIST = sorted((ROOT / "results").glob("table1-mnist-*/table1-mnist.json"))
METHODS = ("adv", "trades", "atlas")
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
    return re.sub(r"\*\*|`[^`]*`", "", " ".join(" ".join(lines).split()))


def under(folder: str, row: str, column: str = "AutoAttack") -> float:
    """Our accuracy of a cell of Table 1 on MNIST."""
    (found,) = (each for each in read(f"{folder}/table1-mnist.json")["rows"] if each["key"] == row)
    return float(found["cells"][column]["ours"])


def of_run(name: str, attack: str) -> float:
    score = read(f"mnist/{name}/scores.json")[attack]
    return 100 * score["right"] / score["n"]


def moved_by_threads() -> list[float]:
    """How far the strong columns of two runs are apart that differ in the number of threads only."""
    pairs = [(f"mini-{method}", f"mini-{method}-2threads") for method in ("adv", "atlas")]
    columns = ("PGD-1000", "margin 5x50")
    return [of_run(b, column) - of_run(a, column) for a, b in pairs for column in columns]


def un_t_of(model: str) -> float:
    """What the default of Un-T leaves in the comparison of optimisers."""
    measured = read("attacks/untargeted-optimizers.json")[model]
    (right,) = (n for *case, n in measured["linf"] if case == ["steepest", "linear", 0.3])
    return 100 * float(right) / float(measured["n"])


def slower_in_bfloat16() -> list[float]:
    """By how many percent bfloat16 makes PGD-1000 slower in the table of circles, by model."""
    found = []
    for model in read("bench-attack-circles.json")["models"]:
        (attack,) = (each for each in model["attacks"] if each["attack"] == "PGD-1000")
        (half,) = (each for each in attack["contestants"] if each["who"] == "ours, bfloat16")
        found.append(100 * (half["over_ours"][1] - 1))
    return found


def readme() -> list[str]:
    low, *_, high = sorted(moved_by_threads())
    return [f"moves such a column by {low:.0f} to {high:.0f} points"]


def epochs(run: str) -> list[dict[str, Any]]:
    records = map(json.loads, (ROOT / "results" / run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "epoch"]


def quick_under_autoattack() -> list[str]:
    asked = {name: load_report(ROOT / "results/evaluation" / f"quick-{name}-1") for name in METHODS}
    left = {name: 100 * report.worst.rate for name, report in asked.items()}
    before = {name: 100 * report.score("FAB-T").rate for name, report in asked.items()}
    found = {name: int(report.results["Square"].fooled.sum()) for name, report in asked.items()}
    p = {name: compared(asked["atlas"], asked[name])["worst case"][2].p_value for name in ("adv", "trades")}
    return [
        "ATLAS keeps {atlas:.1f}%, ADV {adv:.1f}% and TRADES {trades:.1f}% of 1,000 images".format(**left),
        f"above TRADES significantly (p = {p['trades']:.2g})",
        f"statistically tied with ADV (p = {p['adv']:.2g})",
        "it is {atlas:.1f}%, {adv:.1f}% and {trades:.1f}%".format(**before),
        "Square finds {atlas} images more of ATLAS, {adv} of ADV and {trades} of TRADES".format(**found),
    ]


def mnist() -> list[str]:
    margin = {
        name: of_run(f"written-{name}", "margin 5x50") for name in ("atlas-1", "atlas-1-seed1", "adv-1")
    }
    nearer = read("evaluation/trades-20-at-0.2/summary.json")["accuracy"]["Un-T 3x50"]
    ours = [un_t_of(f"quick-{row}") for row in ("adv-1", "atlas-1")]
    theirs = [paper.number("mnist", row, "Un-T") for row in ("adv-1", "atlas-1")]
    sizes = {"adv-1": CNN, "trades-1": f"{CNN}-more", "atlas-1": CNN}
    both = {row: (under(sizes[row], row), under("table1-mnist-cpu", row)) for row in sizes}
    quick = {name: of_run(f"quick-atlas-1{name}", "PGD-1000") for name in ("", "-cnn")}
    low, *_, high = sorted(moved_by_threads())
    return [
        *quick_under_autoattack(),
        f"another number of threads, on the small data, by {low:.0f} to {high:.0f}",
        f"keeps {quick['-cnn']:.1f}% under PGD-1000, where the paper's settings leave "
        f"{under(CNN, 'atlas-1', 'PGD-1000'):.1f}%. On the small network they keep {quick['']:.1f}%, "
        f"and the paper has {paper.number('mnist', 'atlas-1', 'PGD-1000'):.2f}%",
        f"seed 1 of ATLAS keeps {margin['atlas-1-seed1']:.1f}% under the margin attack",
        f"seed 0 keeps {margin['atlas-1']:.1f}% and ADV {margin['adv-1']:.1f}%",
        "ADV keeps {:.1f}% here and {:.1f}% there".format(*both["adv-1"]),
        "TRADES {:.1f}% and {:.1f}%, ".format(*both["trades-1"])
        + "ATLAS {:.1f}% and {:.1f}%".format(*both["atlas-1"]),
        f"leaves {100 * nearer['rate']:.1f}% of {nearer['n']} images",
        f"leaves {ours[0]:.1f}% of ADV and {ours[1]:.1f}% of ATLAS",
        f"the paper has {theirs[0]:.2f}% and {theirs[1]:.2f}%",
    ]


def speed() -> list[str]:
    less, more = sorted(slower_in_bfloat16())
    (mark,) = {0.8} & set(read("bench-time.json")["marks"])
    extra = {method: (2 / 50) / passes for method, passes in {"ADV": 5, "ATLAS": 11}.items()}
    return [
        f"{less:.0f} and {more:.0f}% more",
        f"passed {mark:.0%}",
        f"{extra['ADV']:.1%} to one-step ADV, {extra['ATLAS']:.1%} to one-step ATLAS",
    ]


def evaluation() -> list[str]:
    zoo = read("disguises.json")
    (missed,) = zoo["missed_before"]
    honest = {(r["network"], r["threat"]): r for r in zoo["rows"] if not r["disguise"]}
    published, ours = (honest[name, "L2(eps=2.0)"] for name in ("published MNIST", "mnist/quick-atlas-1"))
    assert [key for key, r in honest.items() if "far-ahead" in r["flags"]] == [
        ("published MNIST", "L2(eps=2.0)"),
        ("mnist/quick-atlas-1", "L2(eps=2.0)"),
    ]
    return [
        f"{missed['quick']}% where {missed['best']}% is right",
        f"the best known attack leaves {ours['quick'] - ours['best']} points less",
        f"{published['quick']}% against {published['best']}%",
    ]


def test_un_t_finds_less_than_pgd_1000_in_the_paper_and_more_here() -> None:
    """In every row of every table on MNIST: docs/mnist.md says so."""
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
    assert under(f"{CNN}-more", "jac", "Un-T") < under(f"{CNN}-more", "jac", "PGD-1000") / 3


def test_seeds_and_quick_settings_move_a_row_by_tens_of_points() -> None:
    """What docs/mnist.md begins with."""
    written, seed1 = (of_run(f"written-atlas-1{name}", "PGD-1000") for name in ("", "-seed1"))
    assert seed1 - written > 60
    for method in ("adv", "atlas"):
        settings = of_run(f"quick-{method}-1", "PGD-1000") - of_run(f"written-{method}-1", "PGD-1000")
        network = under(CNN, f"{method}-1", "PGD-1000") - under("table1-mnist-cpu", f"{method}-1", "PGD-1000")
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
            assert of_run(f"quick-{method}-1", "PGD-1000") > under(folder, f"{method}-1", "PGD-1000")


def test_the_order_of_the_tuned_twenty_step_rows() -> None:
    """TRADES, ATLAS, ADV; TRADES near the paper under its PGD attacks, all above the other tables' rows."""
    folder = "table1-mnist-cpu-tuned-twenty"
    for column in ("PGD-1000", "Un-T", "Multi-T", "AutoAttack"):
        adv, trades, atlas = (under(folder, f"{method}-20", column) for method in METHODS)
        assert trades > atlas > adv
        written = max(under("table1-mnist-cpu", f"{method}-20", column) for method in METHODS)
        assert adv > written
    for column in ("PGD-20", "PGD-1000"):
        assert under(folder, "trades-20", column) > (paper.number("mnist", "trades-20", column) or 0) - 1
    lines = read(f"{folder}/table1-mnist.json")["tables"]["paired-multi-step"]["rows"]
    chances = sorted(line[7]["value"] for line in lines)
    assert len(chances) >= 8
    assert all(p * (len(chances) - k) < 0.05 for k, p in enumerate(chances)), "Holm's correction"
    one_step = [under("table1-mnist-cpu-tuned", f"{method}-1") for method in METHODS]
    assert under(folder, "adv-20") > max(one_step)


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


CLAIMS = {
    "README.md": readme,
    "docs/evaluation.md": evaluation,
    "docs/mnist.md": mnist,
    "docs/speed.md": speed,
}
"""Phrases that a page must have, with the numbers of results/ put in."""


@pytest.mark.parametrize("page", PAGES)
def test_every_share_in_a_sentence_is_one_of_results(page: str) -> None:
    text = prose(page)
    for phrase in CLAIMS.get(page, list)():
        assert phrase in text
        text = text.replace(phrase, "")
    assert set(re.findall(r"[\d.]+%", text)) <= CONVENTIONS, "each wants a line in CLAIMS"
