"""`atlas evaluate` and `atlas suites`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text
from torch import nn
from typer import Argument, Exit, Option

from atlas import data as data_sets
from atlas import presets
from atlas.attacks import Model
from atlas.attacks import suites as attack_suites
from atlas.cli.console import Device, Root, console, one_voice, say
from atlas.config import fingerprint, number
from atlas.data import Images
from atlas.data.load import TEST
from atlas.distributed.launch import checked_device, connected, launch, local_device, rank, size, started
from atlas.errors import LostWorkerError, UsageError, choose
from atlas.evaluation import Report
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import load_report
from atlas.evaluation.plan import chosen_images, planned
from atlas.evaluation.score import WORST_CASE
from atlas.models import source
from atlas.models.normalize import STANDARDS, Normalization
from atlas.runs import Run
from atlas.signals import Requests, caught_signals
from atlas.threat import THREATS, Linf, Threat
from atlas.training import RunConfig, load_config, load_model, train

EVALUATIONS = "evaluations"
POLL_SECONDS = 0.5
LONGEST_WAIT = timedelta(days=7)
"""Shares of the images may differ by hours; a process that dies is noticed at once."""
INVALID = 9
"""The exit code of an evaluation whose numbers mean nothing."""


def evaluate(
    what: Annotated[
        str,
        Argument(
            metavar="RUN_OR_MODEL",
            help="A run's folder, weights (.safetensors, .pt or .pth, with --model), a torch.export archive "
            "(.pt2), an ONNX file (.onnx), or module.path:factory.",
        ),
    ],
    suite: Annotated[str, Option(help="quick, paper, autoattack, full ...: see `atlas suites`.")] = "quick",
    attacks: Annotated[
        list[str] | None,
        Option(metavar="NAMES", help="Only these of the suite, by label or name, or others by name."),
    ] = None,
    alone: Annotated[
        bool, Option("--alone", help="Each attack on every image, also where the suite chains them.")
    ] = False,
    n: Annotated[int | None, Option(help="How many test images; default: all.")] = None,
    random: Annotated[bool, Option("--random", help="n images by chance and seed, not the first n.")] = False,
    eps: Annotated[str | None, Option(help="The radius in pixels of [0, 1], such as 8/255.")] = None,
    norm: Annotated[str | None, Option(help="linf or l2.")] = None,
    data: Annotated[str | None, Option(help="A data set's name or path; default: the run's.")] = None,
    model: Annotated[str | None, Option(help="The model of a weights file: see `atlas models`.")] = None,
    normalize: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"For a model that expects normalised images: {', '.join(STANDARDS)}; or --mean and --std.",
        ),
    ] = None,
    mean: Annotated[
        str | None, Option(metavar="NUMBERS", help="As --normalize: of each channel, as 0.485,0.456,0.406.")
    ] = None,
    std: Annotated[str | None, Option(metavar="NUMBERS", help="The std of each channel.")] = None,
    output: Annotated[
        str | None, Option(metavar="KEY", help="Of several outputs, the logits: such as 0 or logits.")
    ] = None,
    surrogate: Annotated[
        list[str] | None,
        Option(metavar="RUN", help="For the black box attack: a run's folder, or a preset to train."),
    ] = None,
    seed: Annotated[int, Option(help="Of random starts and of --random.")] = 0,
    out: Annotated[Path | None, Option(help="The evaluation's folder; default: by its hash.")] = None,
    batch_size: Annotated[int, Option(min=1, help="Images at a time; changes no verdict.")] = 256,
    processes: Annotated[int, Option(min=1, help="Share the images among so many processes.")] = 1,
    attack_dtype: Annotated[str, Option(help="float32, or bfloat16: verified in float32.")] = "float32",
    eot: Annotated[int, Option(min=1, help="For a random model: the mean of so many looks.")] = 1,
    save_images: Annotated[bool, Option("--save-images", help="Keep images that fool the model.")] = False,
    device: Device = None,
    root: Root = None,
    as_json: Annotated[bool, Option("--json", help="Print the summary as JSON only.")] = False,
    save_seconds: Annotated[float, Option(min=0, help="Save an attack under way this often.")] = 30.0,
) -> None:
    """Learn how robust a model is: accuracy under attacks, the worst case, and how far to trust it.

    - `atlas evaluate runs/mnist-atlas-1` : a quick look at a run
    - `atlas evaluate runs/mnist-atlas-1 --suite paper --n 1000 --surrogate runs/mnist-adv-1`
    - `atlas evaluate old.pth --model cnn-small --data mnist --eps 0.3 --suite autoattack --json`
    - `atlas evaluate old.pth --model my.module:network --data photos --eps 8/255 --normalize imagenet`
    - `atlas evaluate my.module:network --data my.npz --eps 8/255 --suite my-suite.toml`
    - `torchrun --nproc-per-node 8 -m atlas evaluate runs/mnist-atlas-1` : on 8 GPUs; or --processes 8

    After an interruption the same command resumes.
    """
    if processes > 1 and not started():
        raise Exit(launch(sys.argv[1:], processes, independent=True))
    many = size() > 1
    with (
        one_voice(),
        caught_signals() if many else nullcontext(Requests()) as requests,
        connected(LONGEST_WAIT) as group,
    ):
        beside = {"name": model, "normalize": _normalization(normalize, mean, std), "output": output}
        target = named(what, data, **beside)
        threat = _threat(target.threat, eps, norm)
        images = chosen_images(data_sets.load(target.data, train=False, root=root), n, random, seed)
        attacked = target.load(images, device)
        tables = attack_suites.suite(suite, images.name).attacks.values()
        if surrogate and not any(table["name"] == attack_suites.TRANSFER for table in tables):
            raise UsageError(
                f"--surrogate is for the black box attack, which suite {suite} has not; try paper"
            )
        plan = planned(
            threat,
            suite,
            images.name,
            only=_split(attacks or []),
            alone=alone,
            surrogates=_surrogates(surrogate or [], target.folder / "surrogates", device, root),
            seed=seed,
            attack_dtype=attack_dtype,
            eot=eot,
        )
        task = Evaluation(attacked, images, plan, batch_size, save_images, save_seconds=save_seconds)
        folder = out or target.folder / f"{Path(suite).stem}-{fingerprint(task.about)[:8]}"
        if not as_json and group.first:
            say(f"writing to {folder}")
        if many:
            requests.check()
            try:
                task.run_share(folder, group)
            except LostWorkerError:
                requests.check()  # a signal that ended the others was received here too
                raise
    if not group.first:
        return
    report = task.run(folder)
    if as_json:
        print(json.dumps(report.summary(), indent=2))
    else:
        _print(report)
        say(f"Next: atlas report {shlex.quote(what if Path(what).is_dir() and out is None else str(folder))}")
    if not report.valid:
        raise Exit(INVALID)


@dataclass(frozen=True)
class NamedModel:
    """What is evaluated: a run's folder, a model's file, or a factory; with its data and threat."""

    what: str
    data: str
    threat: Threat | None
    folder: Path
    """Where its evaluations go."""
    beside: Mapping[str, Any]
    """Options of `atlas.models.source.load`, for all but runs."""

    def load(self, images: Images, device: str | None) -> nn.Module:
        """The model itself, for images such as these."""
        place = checked_device(local_device(device))
        if Path(self.what).is_dir():
            return load_model(self.what, device=place)
        shape, num_classes = images.shape, images.num_classes
        return source.load(self.what, shape=shape, num_classes=num_classes, device=place, **self.beside)


def named(what: str, data: str | None, **beside: Any) -> NamedModel:
    """Find out what the words of the command line mean; nothing is loaded yet."""
    path = Path(what)
    if path.is_dir():
        if any(option is not None for option in beside.values()):
            raise UsageError(
                f"{what} is a run's folder, which has its model: omit --model, --normalize, --mean, --std "
                "and --output"
            )
        config = load_config(path)
        # Two divisions of the same data into training and test images.
        if data not in (None, config.data) and _undivided(str(data)) == _undivided(config.data):
            raise UsageError(
                f"{what} was trained on {config.data}, whose training images may be test images of {data}: "
                "omit --data, or train on it"
            )
        return NamedModel(what, data or config.data, config.threat, path / EVALUATIONS, {})
    if ":" not in what and not path.suffix:
        raise UsageError(f"there is no folder {what}; expected a run's folder, {source.KINDS}")
    if data is None:
        raise UsageError("--data is missing: a data set's name or path; a run's folder knows its own")
    name = what.replace(":", ".") if ":" in what else path.stem
    return NamedModel(what, data, None, Path(EVALUATIONS) / name, beside)


def _undivided(data: str) -> str:
    return data.rpartition(TEST)[0] or data


def _surrogates(names: Sequence[str], folder: Path, device: str | None, root: Path | None) -> list[Model]:
    """The models of runs; a preset is trained below `folder` first, unless it is there already.

    Of several processes the first trains. If that fails, who started them ends them all.
    """
    found: list[Model] = []
    for name in names:
        place = Path(name)
        if not place.is_dir():
            known, table = presets.load_preset(name)
            place = folder / known
            while not Run(place).last_path.exists():  # which is written when a run has come to its end
                if rank() == 0:
                    train(RunConfig.of(table), place, data_root=root, device=device)
                else:
                    time.sleep(POLL_SECONDS)
        found.append(load_model(place, device=checked_device(local_device(device))))
    return found


def _threat(known: Threat | None, eps: str | None, norm: str | None) -> Threat:
    """The threat of the run, with what the command line says otherwise."""
    kind = choose("norm", norm, THREATS) if norm is not None else type(known) if known else Linf
    if eps is not None:
        return kind(number(eps))
    if known is None:
        raise UsageError("--eps is missing: the radius in pixels of [0, 1], such as 8/255")
    if not isinstance(known, kind):
        raise UsageError(f"--eps is missing: the run's threat is {known}, which says nothing of {norm}")
    return known


def _normalization(name: str | None, mean: str | None, std: str | None) -> str | Normalization | None:
    if mean is None and std is None:
        return name
    if mean is None or std is None:
        raise UsageError("--mean and --std belong together, got only one of them")
    if name is not None:
        raise UsageError("--normalize and --mean with --std do the same: omit one")
    means = [number(part, "--mean") for part in _split([mean])]
    return means, [number(part, "--std") for part in _split([std])]


def _split(names: list[str]) -> list[str]:
    """Also names in one word with commas between them."""
    return [part.strip() for name in names for part in name.split(",") if part.strip()]


def _print(report: Report) -> None:
    title = f"accuracy [95% interval] on {report.n} images of {report.about['data']}, {report.threat}"
    title += ", each attack on what those before it left" if report.about["standing"] else ""
    table = Table(
        "attack", "accuracy", "fooled", "queries an image", "time", title=title, title_justify="left"
    )
    for row in report.lines():
        invalid = row[1].startswith(("invalid", "at most"))
        style = "bold" if row[0] == WORST_CASE else "red" if invalid else None
        table.add_row(*row, style=style)
    console.print(table)
    styles = {"INVALID": "bold red", "WARNING": "bold red"}
    for line in report.warnings():
        console.say(line, styles.get(line.partition(":")[0], "yellow"))


def compare(
    first: Annotated[Path, Argument(metavar="EVALUATION", help="The folder of an evaluation.")],
    second: Annotated[Path, Argument(metavar="EVALUATION", help="Another, of the same images.")],
) -> None:
    """Compare two models on the same images, attack by attack, by an exact paired test (McNemar).

    The difference is that of the accuracies in percentage points; p is the probability of one at least as
    large if the two models were equally robust.
    """
    reports = load_report(first), load_report(second)
    say(f"A: {first}\nB: {second}")
    title = f"accuracy on {reports[0].n} images"
    table = Table("attack", "A", "B", "A - B [95% interval]", "p", title=title, title_justify="left")
    for label, (a, b, pair) in compared(*reports).items():
        low, high = pair.interval
        difference = f"{100 * pair.difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        style = "bold" if label == WORST_CASE else None
        table.add_row(label, f"{a.rate:.1%}", f"{b.rate:.1%}", difference, f"{pair.p_value:.2g}", style=style)
    console.print(table)


def suites() -> None:
    """List the suites and their attacks. For a data set of its own, NAME-DATA is taken for NAME."""
    for name in attack_suites.names():
        suite = attack_suites.suite(name)
        console.print(Text.assemble((name, "bold"), f": {suite.description}"))
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        for label, attack in suite.attacks.items():
            table.add_row(label, _settings(attack))
        console.print(table)


def _settings(table: Mapping[str, Any]) -> str:
    plain = {k: f"({_settings(v)})" if isinstance(v, dict) else v for k, v in table.items() if k != "name"}
    return ", ".join([*filter(None, [table.get("name")]), *(f"{k} {v}" for k, v in plain.items())])
