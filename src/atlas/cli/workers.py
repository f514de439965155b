"""Several processes for one evaluation, each with its share of the images: ours, or torchrun's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import torch
import typer

from atlas.distributed.launch import ATLAS, Workers
from atlas.errors import LostWorkerError
from atlas.evaluation import Shard, merge
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.evaluation.run_attack import AttackProgress
from atlas.files import locked
from atlas.signals import caught_signals
from atlas.training import connected

LONGEST_WAIT = timedelta(days=7)
NOT_FOR_WORKERS = {"processes", "shard", "out", "as_json"}


def run_shards(ctx: typer.Context, task: Evaluation, folder: Path, of: int) -> None:
    """Run the command of `ctx` once for each shard of the task, and merge what they leave in the folder."""
    of = min(of, len(task.data))
    if _claimed(task, folder):
        return
    command = [*ATLAS, "evaluate", *_arguments(ctx), "--out", str(folder)]
    display, shards = AttackProgress(shown=True), [Shard(index, of) for index in range(of)]
    show = partial(_show, [shard.folder(folder) for shard in shards], display)
    with Workers(of) as workers, caught_signals(workers.kill) as requests, ExitStack() as stack:
        # Files, because a pipe that nobody reads is full at some time, and stops who writes.
        errors = [stack.enter_context(TemporaryFile()) for _ in shards]
        for index, file in enumerate(errors):
            words = [*command, *_device(ctx, index), "--shard", f"{index}/{of}"]
            workers.start(words, {}, errors=file)
        with display.bars:
            workers.wait(requests, independent=True, each_poll=show)
        workers.check(requests)
        requests.check()
        if (lost := workers.failed) is not None:
            raise _lost(f"process {lost} of {of} ended with code {workers.codes[lost]}", errors[lost])
    merge(folder, of, list(task.plan.attacks))


def _lost(what: str, errors: IO[bytes]) -> LostWorkerError:
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()
    return LostWorkerError(f"{what}: {said[-500:]} Run the same command again to continue.")


def run_with_others(task: Evaluation, folder: Path) -> bool:
    """Do this process's share, started by torchrun with others; True in the one that is to tell the result.

    The folder has to be on a disk that all of them see. Shares may differ by hours, so they wait for days;
    one that dies is noticed by torchrun.
    """
    with connected(patience=LONGEST_WAIT) as group:
        if any(group.total([int(group.first and _claimed(task, folder))])):
            return group.first
        of = min(group.size, len(task.data))
        if group.rank < of:
            task.run(folder, shard=Shard(group.rank, of), progress=group.first)
        group.wait()
        if group.first:
            merge(folder, of, list(task.plan.attacks))
        group.wait()
        return group.first


def _claimed(task: Evaluation, folder: Path) -> bool:
    """Take the folder for this evaluation; whether all its attacks are over."""
    place = EvaluationFolder(folder, task.code)
    with locked(folder, partial(place.check, task.about)):
        place.claim(task.about)
    return all(place.holds(label, images=task.save_images) for label in task.plan.attacks)


def _device(ctx: typer.Context, index: int) -> list[str]:
    """Where there are GPUs and none was named, the workers take them in turn."""
    if ctx.params["device"] not in (None, "cuda") or not torch.cuda.is_available():
        return []
    return ["--device", f"cuda:{index % torch.cuda.device_count()}"]


def _arguments(ctx: typer.Context) -> list[str]:
    """The command line of `ctx` again, without what is not for workers."""
    words = []
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        if parameter.name in NOT_FOR_WORKERS or value is None or value == parameter.get_default(ctx):
            continue
        option = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        if value is True:
            words += option
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for each in values for word in (*option, str(each))]
    return words


def _show(folders: Sequence[Path], display: AttackProgress) -> None:
    """The attack of the slowest process, and the images of all that are in it."""
    found = [note for folder in folders if (note := EvaluationFolder(folder).progress())]
    if found:
        label = found[0]["label"]
        same = [note for note in found if note["label"] == label]
        if label != display.label:
            display.begin(label)
        share = sum(note["share"] for note in same) / len(same)
        display.update(share, sum(note["robust"] for note in same), sum(note["n"] for note in same))
