"""Models side by side on the same images under the same attacks, and which differences are significant."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from atlas.evaluation import Report, Score
from atlas.evaluation.compare import COMPARED, Paired, compared, paired
from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas.reports.collect import ReportedModel
from atlas.reports.tables import Cell, Table
from atlas.terminal import duration
from atlas.threat import eps_text

LEVEL = 0.05
"""A difference with a smaller p-value is called significant."""
LEAST_P = 0.001
"""Smaller p-values are written as "p < 0.001"."""
WORST_CLASS = "worst class"
MOST_CLASSES = 20
"""Of more classes, a table has the weakest."""
TIED_MEANS = (
    f"not significantly different from the best of its column (p ≥ {LEVEL}, McNemar's exact test on the same "
    "images, each model against the best, not corrected for the number of comparisons)"
)
NORMS = {"linf": "L∞", "l2": "L2"}


def threat_text(table: Mapping[str, Any]) -> str:
    """From a threat's table: L∞, ε = 0.3."""
    name = str(table["name"])
    return f"{NORMS.get(name, name)}, ε = {eps_text(float(table['eps']))}"


def p_text(p: float) -> str:
    """A p-value."""
    return f"p = {p:.2g}" if p >= LEAST_P else f"p < {LEAST_P}"


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """One evaluation of one run."""

    run: ReportedModel
    folder: str
    report: Report
    name: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """Evaluations that can stand in one table: the same images, threat and attacks."""

    entries: tuple[ComparedModel, ...]

    @property
    def about(self) -> Mapping[str, Any]:
        return self.entries[0].report.about

    @property
    def n(self) -> int:
        return self.entries[0].report.n

    @property
    def columns(self) -> list[str]:
        """Clean, each attack, the worst case."""
        return list(self.entries[0].report.scores)

    @property
    def title(self) -> str:
        chain = ", each attack on what those before it left" if self.about["standing"] else ""
        return f"{self.setting}, n = {self.n:,}{chain}"

    @property
    def setting(self) -> str:
        """Data set and threat: the parts of a page."""
        return f"{self.about['data']}, {threat_text(self.about['threat'])}"

    @property
    def worst_text(self) -> str:
        """The worst case in words: of a single attack it is that attack."""
        attacks = self.columns[1:-1]
        return f"under {attacks[0]}" if len(attacks) == 1 else "in the worst case"

    @cached_property
    def leaders(self) -> dict[str, list[ComparedModel]]:
        """In each column the models with the highest accuracy, where there are several to choose from."""
        return {label: self._leaders(label) for label in self.columns}

    def _leaders(self, label: str) -> list[ComparedModel]:
        scores = {entry: entry.report.scores[label] for entry in self.entries}
        valid = [entry for entry, score in scores.items() if not score.reasons]
        if len(valid) < 2 or not all(self.paired(valid[0], entry, label) for entry in valid[1:]):
            return []
        top = max(scores[entry].rate for entry in valid)
        return [entry for entry in valid if scores[entry].rate == top]

    def paired(self, one: ComparedModel, other: ComparedModel, label: str) -> Paired | None:
        """The paired test of two models in one column; None where it would mean nothing."""
        if one.report.scores[label].reasons or other.report.scores[label].reasons:
            return None
        if label == ON_CLEAN:  # which may mean something where the rest does not
            return paired(one.report.clean_right, other.report.clean_right)
        found = compared(one.report, other.report).get(label)
        return found[2] if found else None

    def to_the_best(self, entry: ComparedModel, label: str) -> Paired | None:
        """The test against the best of the column; None for the best itself, and if there is none.

        If several share the best accuracy, the largest p-value, so that their order does not matter.
        """
        leaders = self.leaders[label]
        pairs = [self.paired(best, entry, label) for best in leaders if entry not in leaders]
        return max(filter(None, pairs), key=lambda pair: pair.p_value, default=None)

    def _cell(self, entry: ComparedModel, label: str) -> Cell:
        pair = self.to_the_best(entry, label)
        tied = pair is not None and pair.p_value >= LEVEL
        return Cell.of(entry.report.scores[label], best=entry in self.leaders[label], tied=tied)

    def table(self) -> Table:
        """Accuracy with its 95% interval, a row per model."""
        columns = [(label, [self._cell(entry, label) for entry in self.entries]) for label in self.columns]
        if any(entry.report.worst_class for entry in self.entries):
            columns.append((WORST_CLASS, [_worst_class(entry.report) for entry in self.entries]))
        seconds = [entry.run.seconds for entry in self.entries]
        if any(seconds):
            columns.append(
                ("training", [Cell(duration(each), each) if each else Cell("") for each in seconds])
            )
        notes = ["accuracy [95% Wilson interval]; the worst case is taken image by image over these attacks"]
        if self.entries[0].report.queries_only:
            notes.append("no white-box attack was run: the worst case is by queries only, an upper bound")
        if len(self.entries) > 1:
            notes.append(
                "tests are about these models on these images; another seed would have trained other models"
            )
            if unmarked := [label for label in self.columns if not self.leaders[label]]:
                notes.append(f"no best is marked where rows cannot be compared: {', '.join(unmarked)}")
        for entry in self.entries:
            flags = [flag for flag in entry.report.flags if flag.grave]
            notes += [f"{flag.word}: {entry.name}: {flag.name}: {flag.evidence}" for flag in flags]
        heads, cells = zip(("model", [entry.name for entry in self.entries]), *columns, strict=True)
        rows = zip(*cells, strict=True)
        return Table.of(self.title, heads, rows, notes=tuple(notes), tied_means=TIED_MEANS)

    def differences(self) -> Table | None:
        """Every other model minus the one that is best in the worst case, in points, with interval and p."""
        if not self.leaders[WORST_CASE]:
            return None
        best = self.leaders[WORST_CASE][0]
        rows: list[list[Cell | str]] = [
            [entry.name, *(_difference(self.paired(best, entry, label)) for label in self.columns)]
            for entry in self.entries
            if entry is not best
        ]
        note = (
            "[95% interval] for paired samples, an approximation; p by McNemar's exact test, two-sided; "
            "where the two disagree the test decides"
        )
        title = f"Difference to {best.name}, in points"
        return Table.of(title, ["model", *self.columns], rows, notes=(note,))

    def by_class(self, named: Callable[[int], str] = str) -> Table:
        """The worst case in each class; `named` is for classes that the evaluations have no names of."""
        named = next((e.report.named for e in self.entries if e.report.class_names), named)
        right = {e.name: e.report.robust for e in self.entries if e.report.valid}
        invalid = {e.name: str(e.report.worst) for e in self.entries if not e.report.valid}
        what = f"Worst case over {', '.join(self.columns[1:-1])}; {self.title}"
        return by_class(what, self.entries[0].report.y, right, invalid, named)


def _worst_class(report: Report) -> Cell:
    """The class with the lowest accuracy in the worst case, and that."""
    if report.worst_class is None:
        return Cell("")
    label, score = report.worst_class
    return replace(Cell.of(score), note=f"class {report.named(label)}")


def _difference(pair: Paired | None) -> Cell:
    if pair is None:
        return Cell("")
    low, high = pair.interval
    points = 100 * (pair.only_b - pair.only_a) / pair.n
    return Cell(f"{points:+.1f}", points, (-100 * high, -100 * low), note=p_text(pair.p_value))


def by_class(
    what: str,
    y: Tensor,
    right: Mapping[str, Tensor],
    invalid: Mapping[str, str],
    named: Callable[[int], str] = str,
) -> Table:
    """Robust accuracy of each model in each class, and in the last row the images of each class.

    `what` says of which attacks and images it is; y: int64 [N]; `right`, bool [N], is whether each image is
    classified correctly, and `invalid` why there are no numbers, both by model.
    """
    sizes = {label: int((y == label).sum()) for label in sorted(set(y.tolist()))}
    scores = {
        name: {label: Score(int(mask[y == label].sum()), size) for label, size in sizes.items()}
        for name, mask in right.items()
    }
    classes = list(sizes)
    if len(classes) > MOST_CLASSES and scores:
        sums = {label: round(sum(row[label].rate for row in scores.values()), 9) for label in classes}
        classes = sorted(classes, key=lambda label: sums[label])[:MOST_CLASSES]
        mean = " in the mean of the models" if len({*right, *invalid}) > 1 else ""
        what += f"; the {MOST_CLASSES} weakest of {len(sizes)} classes{mean}, the weakest first"
        last = sums[classes[-1]]
        if ties := sum(total == last for label, total in sums.items() if label not in classes):
            what += f"; {ties} more {'is' if ties == 1 else 'are'} as weak as the last of these"
    rows: list[list[Cell | str]] = [
        [name, *(Cell.of(row[label], "{:.0f}") for label in classes)] for name, row in scores.items()
    ]
    rows += [[name, reason, *[""] * (len(classes) - 1)] for name, reason in invalid.items()]
    rows.append(["images", *(Cell.number(sizes[label], "{:d}") for label in classes)])
    return Table.of("Robust accuracy (%) per class", ["class", *map(named, classes)], rows, notes=(what,))


def comparisons(runs: Sequence[ReportedModel]) -> list[Comparison]:
    """All evaluations of the runs, grouped by what can be compared.

    Data sets and threats come in the order of the runs; of each, the groups with most runs first, then those
    at the radius of the training, then those with the strongest attacks.
    """
    groups: dict[str, list[ComparedModel]] = {}
    for run in runs:
        for folder, report in run.evaluations.items():
            about = {key: report.about[key] for key in ("data_hash", *COMPARED)}
            key = json.dumps([about, list(report.results)], sort_keys=True)
            groups.setdefault(key, []).append(ComparedModel(run, folder, report, run.name))
    found = [Comparison(tuple(_with_unique_names(entries))) for entries in groups.values()]
    places = {run.name: place for place, run in enumerate(runs)}
    first: dict[str, int] = {}
    for each in found:
        given = min(places[entry.run.name] for entry in each.entries)
        first[each.setting] = min(given, first.get(each.setting, given))
    return sorted(found, key=lambda each: (first[each.setting], *_rank(each)))


def _rank(comparison: Comparison) -> tuple[float, ...]:
    worst = [entry.report.worst for entry in comparison.entries]
    at_most = statistics.fmean(1.0 if score.reasons else score.interval[1] for score in worst)
    runs = {entry.run.name for entry in comparison.entries}
    threats = [entry.run.threat for entry in comparison.entries if entry.run.threat]
    elsewhere = any(threat.eps != comparison.about["threat"]["eps"] for threat in threats)
    return -len(runs), elsewhere, at_most, -len(comparison.columns), -comparison.n


def _with_unique_names(entries: Sequence[ComparedModel]) -> list[ComparedModel]:
    """A run that was evaluated twice in the same way has the folder beside its name."""
    names = [entry.name for entry in entries]
    return [replace(e, name=f"{e.name} ({e.folder})") if names.count(e.name) > 1 else e for e in entries]


def long_table(runs: Sequence[ReportedModel]) -> Table:
    """One row per model and attack, for programs and spreadsheets."""
    rows = []
    for comparison in comparisons(runs):
        for entry in comparison.entries:
            known = [entry.name, entry.folder, str(comparison.about["data"])]
            known.append(threat_text(comparison.about["threat"]))
            for label, score in entry.report.scores.items():
                pair = comparison.to_the_best(entry, label)
                p_value = Cell.number(pair.p_value, "{:.2g}") if pair else ""
                rows.append([*known, label, Cell.number(score.n, "{:d}"), Cell.of(score), p_value])
            if entry.report.worst_class is not None:
                number, score = entry.report.worst_class
                label = f"{WORST_CLASS}: {entry.report.named(number)}"
                rows.append([*known, label, Cell.number(score.n, "{:d}"), Cell.of(score), ""])
    columns = ["model", "evaluation", "data", "threat", "attack", "n", "accuracy", "p against the best"]
    return Table.of("Accuracy in percent", columns, rows)


def at_a_glance(found: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with a model that none before them has: a page begins with these."""
    seen, kept = set[str](), []
    for comparison in found:
        names = {entry.run.name for entry in comparison.entries}
        if names - seen:
            kept.append(comparison)
        seen |= names
    return kept


def verdict(comparison: Comparison) -> str:
    """The comparison in a sentence: which model is best, whether significantly, and which is invalid."""
    worst = [(entry.name, entry.report.worst) for entry in comparison.entries]
    valid = [(name, score) for name, score in worst if not score.reasons]
    where, n = comparison.worst_text, f"n = {comparison.n:,}"
    said = []
    if comparison.leaders[WORST_CASE]:
        said.append(_lead(comparison, comparison.leaders[WORST_CASE]))
    elif len(valid) == 1:
        said.append(f"{valid[0][0]} has an accuracy of {valid[0][1]} {where}, {n}.")
    elif valid:
        said.append(f"These evaluations cannot be compared {where}.")
    invalid = [(name, f"{'invalid: ' * score.is_bound}{score}") for name, score in worst if score.reasons]
    if invalid:
        whose = _listed([f"that of {name} is {text}" for name, text in invalid])
        said.append(f"The result {whose.removeprefix('that ')}.")
    return " ".join(said)


def _lead(comparison: Comparison, leaders: Sequence[ComparedModel]) -> str:
    """Which models lead, and over which others the lead may be chance."""
    pairs = {entry.name: comparison.to_the_best(entry, WORST_CASE) for entry in comparison.entries}
    p_values = {name: pair.p_value for name, pair in pairs.items() if pair}
    tied = [f"{name} ({p_text(p)})" for name, p in p_values.items() if p >= LEVEL]
    have = "share" if len(leaders) > 1 else "has"
    start = (
        f"{_listed([entry.name for entry in leaders])} {have} the highest accuracy {comparison.worst_text}, "
        f"{leaders[0].report.worst}, n = {comparison.n:,}"
    )
    if tied:
        return f"{start}; the lead over {_listed(tied)} may be chance."
    if not p_values:  # all share the best accuracy
        return f"{start}."
    largest = p_text(max(p_values.values()))
    return f"{start}; on these images that is more than chance ({largest}; one training of each)."


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
