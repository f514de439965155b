"""What an order has, what it lacks, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atlas_paper.artefact import Row
from atlas_paper.cost import Costs, Probe
from atlas_paper.request import Request, Run
from atlas_paper.run_status import course
from atlas_paper.runner import Runner


@dataclass(frozen=True)
class Job:
    """A run and its evaluations, as far as they have come."""

    what: str
    run: Run
    state: str
    epochs: int
    training: float
    """Seconds left of it, estimated."""
    done: tuple[str, ...] = ()
    """Columns that are finished."""
    left: tuple[str, ...] = ()
    attacks: float = 0.0
    """Seconds left of them, estimated."""


def list_jobs(order: Request, lab: Runner, probe: Probe) -> list[Job]:
    """The jobs of an order; a run that several rows share is left to the first of them."""
    return list(_jobs(order, lab, Costs(order, probe)))


def _jobs(order: Request, lab: Runner, costs: Costs) -> Iterator[Job]:
    for task in dict.fromkeys(r.task for r in order.rows if any(c.transfer for c in order.columns(r))):
        made = course(order.surrogate(task), lab.workspace)
        left = 0.0 if made.finished else costs.training(made.run, task, len(made.epochs))
        yield Job(f"surrogate, {task}", made.run, made.state, len(made.epochs), left)
    seen: set[str] = set()
    for seed in range(order.seeds):
        for row in order.rows:
            job = _job(order, lab, costs, row, seed)
            if job.run.hash not in seen:
                yield job
            seen.add(job.run.hash)


def _job(order: Request, lab: Runner, costs: Costs, row: Row, seed: int) -> Job:
    made = course(order.run(row, seed), lab.workspace)
    run, folder, columns = made.run, made.folder, order.columns(row)
    done: tuple[str, ...] = ()
    if made.finished and folder is not None:
        done = tuple(c.label for c in columns if lab.examination(order, row, run, folder, c) is not None)
    left = [column for column in columns if column.label not in done]
    return Job(
        f"{row.label}, {row.task}, seed {seed}",
        run,
        made.state,
        len(made.epochs),
        0.0 if made.finished else costs.training(run, row.task, len(made.epochs)),
        done,
        tuple(column.label for column in left),
        sum(costs.attack(run, row, column) for column in left),
    )
