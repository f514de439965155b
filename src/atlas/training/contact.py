"""How ranks find each other, and how all of them end when one does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn  # its defaults hold the group of this moment, threads and all: let it be none
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from atlas.errors import AtlasError, Interrupted, LostWorkerError, UsageError
from atlas.signals import DEFAULT_WORKER_TIMEOUT, leave_with_parent, worker_timeout
from atlas.training.ranks import Ranks
from atlas.training.team import Team, reached

GREETING_SECONDS = 0.05
LAST_WORDS = "last-words"


def started() -> bool:
    """Whether torchrun or `launch` has started this process, with others or not."""
    return "RANK" in os.environ


def rank() -> int:
    """This process's number among those that were started together."""
    return int(os.environ.get("RANK", 0))


def size() -> int:
    """How many were started together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def checked_device(name: torch.device | str | None) -> torch.device:
    """The device of this name, or the default; one that is not there is a usage error."""
    try:
        device = torch.device(name) if name else default_device()
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {str(name)!r} cannot be used here: {error}; try cpu") from error
    return device


def local_device(name: str | None) -> str | None:
    """The device of this name; where it names all GPUs or none, each process of a machine takes one."""
    if size() == 1 or not torch.cuda.is_available() or name not in (None, "cuda"):
        return name
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


@contextmanager
def connected(patience: timedelta | None = None) -> Iterator[Ranks]:
    """The processes that were started together. An error that ends one of them ends all, and is told to all.

    A process that was started alone is alone.

    Args:
        patience: How long to wait for a rank that is there but silent; default: `worker_timeout()`. One that
            is gone is noticed at once.
    """
    if size() == 1:
        yield Ranks()
        return
    patience = patience or timedelta(seconds=worker_timeout())
    leave_with_parent()
    start = max(patience, timedelta(seconds=DEFAULT_WORKER_TIMEOUT))  # imports alone may take a while
    with reached():
        shared, number, of = next(rendezvous("env://", timeout=start))
        store = _ours(shared, number, of, time.monotonic() + start.total_seconds())
        # Which of the two carries a tensor is decided by where the tensor is.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=of, timeout=patience)
    try:
        yield Team(number, of)
    except Interrupted:  # by agreement: there is nobody to tell
        raise
    except LostWorkerError as lost:
        raise _heard(store) or lost from lost
    except Exception as error:
        code = error.exit_code if isinstance(error, AtlasError) else LostWorkerError.exit_code
        with suppress(RuntimeError):
            store.compare_set(LAST_WORDS, "", json.dumps([code, f"process {number} of {of}: {error}"]))
        raise
    finally:
        dist.destroy_process_group()


def _ours(shared: Store, number: int, of: int, deadline: float) -> Store:
    """A part of the store that only the processes of this start use.

    torchrun's store outlives them, with the addresses of those before a restart in it, which new ones would
    call in vain. So each but the first greets with a word of its own, and the first, which is alive, answers
    that very word with the name of the part.
    """
    word = uuid4().hex
    if number:
        shared.set(f"atlas/greeting/{number}", word)
        store = PrefixStore(shared.get(f"atlas/answer/{word}").decode(), shared)
        store.set(f"here/{number}", "")
        return store
    store = PrefixStore(word, shared)
    while missing := [n for n in range(1, of) if not store.check([f"here/{n}"])]:
        for n in missing:
            if shared.check([f"atlas/greeting/{n}"]):
                shared.set(f"atlas/answer/{shared.get(f'atlas/greeting/{n}').decode()}", word)
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for ranks {missing} of {of}")
        time.sleep(GREETING_SECONDS)
    return store


def _heard(store: Store) -> AtlasError | None:
    """The error of which a lost rank has died, if it had time to say."""
    try:
        if not store.check([LAST_WORDS]):
            return None
        code, words = json.loads(store.get(LAST_WORDS))
    except RuntimeError:  # the store is gone too
        return None
    error = AtlasError(words)
    error.exit_code = code
    return error
