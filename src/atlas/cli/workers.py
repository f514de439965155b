"""Several processes for one evaluation, each with its share of the images: ours, or torchrun's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import torch
import typer

from atlas.disk import locked
from atlas.errors import Interrupted, LostWorkerError
from atlas.evaluation import Shard, merge
from atlas.evaluation.display import Display
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.folder import EvaluationFolder
from atlas.signals import LAUNCHER, Requests, caught_signals
from atlas.training import connected

POLL_SECONDS = 0.2
LONGEST_WAIT = timedelta(days=7)
NOT_FOR_WORKERS = {"processes", "shard", "out", "as_json"}


def run_shards(ctx: typer.Context, task: Evaluation, folder: Path, of: int) -> None:
    """Run the command of `ctx` once for each shard of the task, and merge what they leave in the folder.

    Threads are shared out among the processes, unless the user has set their number. A Ctrl-C reaches this
    process alone, which passes it on: a worker that heard it twice would not wait to save.
    """
    of = min(of, len(task.data))
    if _claimed(task, folder):
        return
    threads = str(max(1, (os.cpu_count() or 1) // of))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, LAUNCHER: str(os.getpid())}
    command = [sys.executable, "-m", "atlas", "evaluate", *_arguments(ctx), "--out", str(folder)]
    with caught_signals() as requests, ExitStack() as stack:
        workers = []
        for index in range(of):
            said = stack.enter_context(TemporaryFile())  # a pipe would be full one day, and stop who writes
            words = [*command, *_device(ctx, index), "--shard", f"{index}/{of}"]
            process = subprocess.Popen(words, env=environment, stderr=said, start_new_session=True)
            workers.append(Worker(process, said))
        try:
            _wait(workers, requests, [Shard(index, of).folder(folder) for index in range(of)])
        finally:
            for worker in workers:
                worker.process.terminate()
                worker.process.wait()
    merge(folder, of, list(task.plan.attacks))


def run_with_others(task: Evaluation, folder: Path) -> bool:
    """Do this process's share, started by torchrun with others; True in the one that is to tell the result.

    The folder has to be on a disk that all of them see. Shares may differ by hours, so they wait for days;
    one that dies is noticed by torchrun.
    """
    with connected(patience=LONGEST_WAIT) as ranks:
        if any(ranks.total([int(ranks.first and _claimed(task, folder))])):
            return ranks.first
        of = min(ranks.size, len(task.data))
        if ranks.rank < of:
            task.run(folder, shard=Shard(ranks.rank, of), progress=ranks.first)
        ranks.wait()
        if ranks.first:
            merge(folder, of, list(task.plan.attacks))
        ranks.wait()
        return ranks.first


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


@dataclass(frozen=True)
class Worker:
    """A process for a share, and what it says of errors."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]


def _wait(workers: Sequence[Worker], requests: Requests, folders: Sequence[Path]) -> None:
    """Until all have ended well; a signal, or one that fails, ends them all."""
    display = Display(shown=True)
    with display.bars:
        _watch(workers, requests, folders, display)
    _check(workers)


def _watch(workers: Sequence[Worker], requests: Requests, folders: Sequence[Path], display: Display) -> None:
    processes = [worker.process for worker in workers]
    while any(process.poll() is None for process in processes):
        _show(folders, display)
        if requests.caught is not None:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait()
            raise Interrupted(requests.caught)
        _check(workers)
        time.sleep(POLL_SECONDS)


def _show(folders: Sequence[Path], display: Display) -> None:
    """The attack of the slowest process, and the images of all that are in it."""
    found = [note for folder in folders if (note := EvaluationFolder(folder).progress())]
    if found:
        label = found[0]["label"]
        same = [note for note in found if note["label"] == label]
        if label != display.label:
            display.begin(label)
        share = sum(note["share"] for note in same) / len(same)
        display.update(share, sum(note["robust"] for note in same), sum(note["n"] for note in same))


def _check(workers: Sequence[Worker]) -> None:
    for index, worker in enumerate(workers):
        if code := worker.process.poll():
            worker.said.seek(0)
            said = worker.said.read().decode(errors="replace").strip()
            raise LostWorkerError(
                f"process {index} of {len(workers)} ended with code {code}: {said[-500:]} "
                "The same command goes on where they were."
            )
