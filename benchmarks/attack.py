"""An attack in other libraries against ours: seconds, and the accuracy that each leaves.

All run on the same model, images, batches and budget, each repeat from another seed. What an attack returns
is judged in one way for all. Other libraries run in a process of their own, without our memory settings;
those that are not installed are listed.

  python -m benchmarks attack --weights runs/mnist-adv-1 --budget 0.01 --n 64 --repeats 1      # a minute
  python -m benchmarks attack --weights w.safetensors --model cnn-small --data mnist --eps 0.3 --attack pgd
"""

from __future__ import annotations

import copy
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atlas import data
from atlas.attacks import Attack, Square, frozen
from atlas.attacks.engine import predict
from atlas.attacks.model_variants import channels_last
from atlas.attacks.suites import suite
from atlas.cli.evaluate import named
from atlas.config import number
from atlas.distributed.launch import checked_device
from atlas.errors import UsageError, choose
from atlas.evaluation.plan import Plan, build_attack, chosen_images
from atlas.evaluation.run_attack import AttackedModel
from atlas.machine import machine
from atlas.models.source import fingerprint
from atlas.threat import Linf, eps_text
from benchmarks.attack_peers import LIBRARIES, PEERS, AttackTask, installed, versions
from benchmarks.command import Repeated, add_shared, at_least
from benchmarks.processes import silence, worker_process
from benchmarks.tables import NOTE, Blocks, TextTable, facts, note_of, ratio, save
from benchmarks.timing import NOT_INSTALLED, OURS, Contestant, interleave, seconds_of

AUTOATTACK = "autoattack"
PAPER = ("PGD-1000", "Un-T")
"""How the labels of the paper's attacks begin that are measured."""
HEADINGS = ("who", "seconds", f"time / {OURS}", "robust %", NOTE)

AttackRun = Callable[[AttackTask, Sequence[Attack]], Tensor | None]
"""x_adv of a task and an attack, or a chain of them; None if it is no attack."""
Verdict = tuple[float, tuple[int, int] | None]
"""The seconds of a run, and how many images it left and how many points it had outside: see `judge`."""


@dataclass(frozen=True)
class AttackCase:
    """An attack, or a chain of them, each on what those before it have left."""

    name: str
    label: str
    attacks: tuple[Attack, ...]
    settings: str

    def passes(self, num_classes: int) -> int:
        """Of the whole budget on one image: forward passes, and input gradients, which cost as much."""
        return sum(a.attempts(num_classes) * a.steps * (a.forwards + a.white_box) for a in self.attacks)

    def shortest(self) -> AttackCase:
        """With attempts of one step."""
        sizes = ({"queries": 1} if isinstance(a, Square) else {"steps": 1} for a in self.attacks)
        return replace(self, attacks=tuple(map(_replaced, self.attacks, sizes)))


def _replaced(attack: Attack, changes: Mapping[str, Any]) -> Attack:
    return replace(attack, **changes)  # type: ignore[type-var]


def attack_cases(data_set: str, budget: float = 1.0, only: Sequence[str] = ()) -> list[AttackCase]:
    """The paper's two strongest attacks, each stage of AutoAttack, and all of AutoAttack, or `only` some.

    The data set's suites give the settings; `budget` is the share of their steps and queries.
    """
    if not 0 < budget <= 1:
        raise UsageError(f"--budget must be > 0 and <= 1, got {budget}")
    paper = {label: t for label, t in suite("paper", data_set).attacks.items() if label.startswith(PAPER)}
    found = {}
    for label, full in {**paper, **suite(AUTOATTACK, data_set).attacks}.items():
        size = "queries" if "queries" in full else "steps"
        table = {**full, size: max(1, round(full[size] * budget))}
        settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in table.items() if k != "name")
        found[table["name"]] = AttackCase(table["name"], label, (build_attack(table),), settings)
    chain = list(found.values())[len(paper) :]
    settings = ", ".join(case.label for case in chain) + ", each on what is left"
    attacks = tuple(attack for case in chain for attack in case.attacks)
    found[AUTOATTACK] = AttackCase(AUTOATTACK, "AutoAttack", attacks, settings)
    return [choose("attack", name, found) for name in only or found]


def ours(task: AttackTask, attacks: Sequence[Attack], dtype: str = "float32") -> Tensor:
    """The attacks as an evaluation runs them, without its files, display and extra checks."""
    with frozen(task.model), channels_last(task.model, task.images.pixels(slice(0, 1))):
        plan = Plan(Linf(task.eps), {}, seed=task.seed, attack_dtype=dtype)
        subject = AttackedModel(task.model, task.images, plan, task.batch_size)
        x_adv, left = subject.x.clone(), torch.ones(len(task.y), dtype=torch.bool)
        for attack in attacks:
            engine = subject.under(attack, left)
            while not engine.finished:
                engine.step()
            outcome = engine.outcome()
            x_adv[left.to(x_adv.device)] = outcome.x_adv
            left = left.masked_scatter(left, outcome.robust.cpu())
        return x_adv


def bare_passes(task: AttackTask, attacks: Sequence[Attack]) -> None:
    """The passes of the attacks' steps if no image leaves early, with nothing around them."""
    for attack in attacks:
        for x, y in task.batches():
            for _ in range(attack.attempts(task.images.num_classes) * attack.steps):
                if attack.white_box:
                    x_adv = x.detach().requires_grad_()
                    torch.autograd.grad(F.cross_entropy(task.model(x_adv), y, reduction="sum"), x_adv)
                with torch.no_grad():
                    for _ in range(attack.forwards - attack.white_box):
                        task.model(x)


def own_runs(case: AttackCase) -> dict[str, tuple[AttackRun, str]]:
    """Our runs by name, each with a note."""

    def one_restart(task: AttackTask, attacks: Sequence[Attack]) -> Tensor:
        return ours(task, [_replaced(attack, {"restarts": 1}) for attack in attacks])

    runs: dict[str, tuple[AttackRun, str]] = {OURS: (ours, "")}
    if any(getattr(attack, "restarts", 1) > 1 for attack in case.attacks):
        runs[f"{OURS}, one restart"] = (one_restart, "of as many as the others have")
    runs[f"{OURS}, bfloat16"] = (lambda task, a: ours(task, a, "bfloat16"), "verified in float32")
    return runs | {"bare passes": (bare_passes, "the whole budget on every image")}


class PeerAttacks:
    """Runs other libraries' attacks on a task, by case and library; made in the worker process."""

    def __init__(self, task: AttackTask) -> None:
        self.task = task

    def __call__(self, case: AttackCase, name: str, seed: int) -> Verdict:
        with silence():
            return judged(self.task, case, seed, lambda task, attacks: LIBRARIES[name](task, *attacks))


def judged(task: AttackTask, case: AttackCase, seed: int, run: AttackRun) -> Verdict:
    """Run an attack, and judge the points that it returns. Sets the global random states."""
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(seed)
    task = replace(task, seed=seed)
    with frozen(task.model, fast_conv_grad=False):
        seconds, x_adv = seconds_of(lambda: run(task, case.attacks), task.x.device)
        return seconds, None if x_adv is None else judge(task, x_adv)


def judge(task: AttackTask, x_adv: Tensor) -> tuple[int, int]:
    """How many images are classified correctly and not fooled, and how many points are outside ball or box.

    A separate float32 pass decides. A point fools if the model is wrong there, and if it lies in the ball of
    radius eps and in [0, 1], both to 1e-6.
    """
    if x_adv.shape != task.x.shape:
        raise ValueError(f"x_adv must have shape {list(task.x.shape)}, got {list(x_adv.shape)}")
    inside = Linf(task.eps).contains(x_adv, task.x)
    right = predict(task.model, task.x, task.batch_size).argmax(1) == task.y
    fooled = inside & (predict(task.model, x_adv, task.batch_size).argmax(1) != task.y)
    return int((right & ~fooled).sum()), int((~inside).sum())


def contestants(task: AttackTask, case: AttackCase, theirs: Callable[..., Verdict]) -> list[Contestant]:
    """Ours, the bare passes, and every library that has the attack; warm-ups are attacks of one step."""
    short, cost = case.shortest(), case.passes(task.images.num_classes)

    def mine(run: AttackRun) -> Callable[[int], Verdict]:
        return lambda repeat: judged(task, case if repeat >= 0 else short, max(0, repeat), run)

    def other(name: str) -> Callable[[int], Verdict]:
        return lambda repeat: theirs(case if repeat >= 0 else short, name, max(0, repeat))

    group = [Contestant(name, mine(run), note, cost) for name, (run, note) in own_runs(case).items()]
    for name, note in PEERS[case.name].items():
        error = None if installed(name) else NOT_INSTALLED
        group.append(Contestant(name, other(name), note, cost, error))
    return group


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    weights = "a run's folder, or .safetensors with --model; repeatable"
    add("--weights", action=Repeated, required=True, help=weights)
    add("--model", help="the network of such a file: see `atlas models`")
    add("--data", help="a data set's name or path (default: the run's)")
    add("--eps", type=number, help="the radius in L-inf, such as 8/255 (default: the run's)")
    add("--n", type=at_least(1), default=512, help="test images, from the first (default: 512)")
    add("--attack", action=Repeated, default=(), help=f"one of {', '.join(PEERS)}; repeatable (default: all)")
    add("--budget", type=float, default=1.0, help="share of steps and queries, for a quick look (default: 1)")
    add_shared(parser, repeats=3, batch=256, device="cpu", root=None)


def run(options: Namespace) -> dict[str, Any]:
    tasks = {what: load_task(what, options) for what in options.weights}
    chosen = {w: attack_cases(t.images.name, options.budget, options.attack) for w, t in tasks.items()}
    report = {"machine": machine(checked_device(options.device)), "peers": versions(), "batch": options.batch}
    report |= {"repeats": options.repeats, "budget": options.budget, "models": []}
    for what, task in tasks.items():
        measure(what, task, chosen[what], report, options.json)
    return report


def load_task(what: str, options: Namespace) -> AttackTask:
    subject = named(what, options.data, name=None if Path(what).is_dir() else options.model)
    test = data.load(subject.data, train=False, root=options.root)
    images = chosen_images(test, options.n, random=False, seed=0)
    network, eps = subject.load(images, options.device), options.eps
    if eps is None:
        if not isinstance(subject.threat, Linf):
            raise UsageError(f"--eps is missing: a radius in L-inf such as 8/255 (got {subject.threat})")
        eps = subject.threat.eps
    x, y = images.pixels(device=options.device), images.y.to(options.device)
    return AttackTask(network, images, x, y, Linf(eps).eps, options.batch)


def measure(
    what: str, task: AttackTask, chosen: Sequence[AttackCase], report: dict[str, Any], path: Path | None
) -> None:
    """Add the measurements of one model to the report, which is saved after every run."""
    right = predict(task.model, task.x, task.batch_size).argmax(1) == task.y
    record: dict[str, Any] = {"model": Path(what).stem, "fingerprint": fingerprint(task.model)}
    record |= {"data": task.images.name, "n": len(task.y), "eps": task.eps}
    record |= {"clean": 100 * float(right.float().mean()), "attacks": []}
    report["models"].append(record)
    # A copy, because tensors that are sent move into memory that both processes share.
    with worker_process(PeerAttacks, copy.deepcopy(task)) as theirs:
        groups = {case.label: contestants(task, case, theirs) for case in chosen}

        def keep() -> None:
            record["attacks"] = [attack_record(case, groups[case.label], len(task.y)) for case in chosen]
            if path:
                save(report, path)

        interleave(groups, report["repeats"], record["model"], warm_up=1, keep_going=True, after=keep)


def attack_record(case: AttackCase, group: Sequence[Contestant], n: int) -> dict[str, Any]:
    """For each contestant: all seconds, their ratios to ours, and what was left of n images."""
    found = []
    for each in group:
        verdicts = [verdict for verdict in each.results if verdict is not None]
        left = {"robust": [100 * count / n for count, _ in verdicts], "outside": [out for _, out in verdicts]}
        found.append({**each.record(group[0]), **left})
    return {"attack": case.label, "settings": case.settings, "contestants": found}


def blocks(report: Mapping[str, Any]) -> Blocks:
    budget = "the full budget" if report["budget"] == 1 else f"{100 * report['budget']:g}% of the budget"
    page: Blocks = [f"Measured on {facts(report)}; {budget}."]
    for m in report["models"]:
        images = f"the first {m['n']} test images of {m['data']}"
        page.append(f"**{m['model']}**: {images}, eps {eps_text(m['eps'])}, clean accuracy {m['clean']:.1f}%")
        for each in m["attacks"]:
            rows = []
            for c in each["contestants"]:
                seconds = f"{np.median(c['seconds']):.1f}" if c["seconds"] else "-"
                robust = f"{np.mean(c['robust']):.1f}" if c["robust"] else "-"
                rows.append((c["who"], seconds, ratio(c["over_ours"]), robust, note_of(c)))
            page += [f"{each['attack']} ({each['settings']})", TextTable(HEADINGS, rows)]
    return page
