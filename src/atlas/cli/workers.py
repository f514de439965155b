"""Several processes for one evaluation, each with its share of the images: ours, or torchrun's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import typer

from atlas.disk import locked
from atlas.errors import Interrupted, LostWorkerError
from atlas.evaluation import Shard, merge
from atlas.evaluation.display import Display
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.folder import EvaluationFolder
from atlas.signals import Requests, caught_signals
from atlas.training import connected

POLL_SECONDS = 0.2
LONGEST_WAIT = timedelta(days=7)
NOT_FOR_WORKERS = {"processes", "shard", "out", "as_json"}


def run_shards(ctx: typer.Context, task: Evaluation, folder: Path, of: int) -> None:
    """Run the command of `ctx` once for each shard of the task, and merge what they leave in the folder.

    Threads are shared out among the processes, unless the user has set their number. A Ctrl-C reaches this
    process alone, which passes it on: a worker that heard it twice would not wait to save.
    """
    place, of = EvaluationFolder(folder), min(of, len(task.data))
    with locked(folder):
        place.claim(task.about)
    if all(place.holds(label, images=task.save_images) for label in task.plan.attacks):
        return
    threads = str(max(1, (os.cpu_count() or 1) // of))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    command = [sys.executable, "-m", "atlas", "evaluate", *_arguments(ctx), "--out", str(folder)]
    with caught_signals() as requests:
        workers = [
            subprocess.Popen(
                [*command, "--shard", f"{index}/{of}"],
                env=environment,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for index in range(of)
        ]
        try:
            _wait(workers, requests, [Shard(index, of).folder(folder) for index in range(of)])
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
    merge(folder, of, list(task.plan.attacks))


def run_with_others(task: Evaluation, folder: Path) -> bool:
    """Do this process's share, started by torchrun with others; True in the one that is to tell the result.

    The folder has to be on a disk that all of them see. Shares may differ by hours, so they wait for days;
    one that dies is noticed by torchrun.
    """
    with connected(patience=LONGEST_WAIT) as ranks:
        of = min(ranks.size, len(task.data))
        if ranks.rank < of:
            task.run(folder, shard=Shard(ranks.rank, of), progress=ranks.first)
        ranks.wait()
        if ranks.first:
            with locked(folder):
                EvaluationFolder(folder).claim(task.about)
            merge(folder, of, list(task.plan.attacks))
        ranks.wait()
        return ranks.first


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


def _wait(workers: Sequence[subprocess.Popen[bytes]], requests: Requests, folders: Sequence[Path]) -> None:
    """Until all have ended well; a signal, or one that fails, ends them all."""
    display = Display(shown=True)
    with display.bars:
        _watch(workers, requests, folders, display)
    _check(workers)


def _watch(
    workers: Sequence[subprocess.Popen[bytes]],
    requests: Requests,
    folders: Sequence[Path],
    display: Display,
) -> None:
    while any(worker.poll() is None for worker in workers):
        _show(folders, display)
        if requests.caught is not None:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            for worker in workers:
                worker.wait()
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


def _check(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for index, worker in enumerate(workers):
        if worker.poll():
            said = worker.stderr.read().decode(errors="replace").strip() if worker.stderr else ""
            raise LostWorkerError(
                f"process {index} of {len(workers)} ended with code {worker.returncode}: {said[-500:]} "
                "The same command goes on where they were."
            )
