"""Writes that fail, folders with one worker, and disks that are too small."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from atlas.checkpoint import load_tensors, save_tensors
from atlas.errors import CheckpointError, DamagedError, DiskError, LockError, UsageError
from atlas.files import locked, part_of, require_room, write_atomic
from atlas.runs import Run
from atlas.training.log import Events


@pytest.mark.parametrize(("name", "file", "stays"), [("a", "", False), ("a", "b", True), ("old", "", True)])
def test_a_new_folder_goes_again_if_an_error_leaves_it_empty(
    name: str, file: str, stays: bool, tmp_path: Path
) -> None:
    def fail() -> None:
        if file:
            (tmp_path / name / file).touch()
        raise KeyError

    (tmp_path / "old").mkdir()
    with pytest.raises(KeyError), locked(tmp_path / name):
        fail()
    assert (tmp_path / name).exists() == stays


def test_too_little_room_is_said_with_both_numbers(tmp_path: Path) -> None:
    require_room(tmp_path, 1 << 20)
    with pytest.raises(
        DiskError,
        match=r"No space left on device; needed 4,611,686,018,427,387,904 bytes, free: [\d,]+ bytes",
    ):
        require_room(tmp_path, 1 << 62)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match=r"No space left on device; needed 5 bytes, free: [0-9,]+ bytes"):
        write_atomic(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path, linked: bool) -> None:
    """So does a device: root would lose /dev/null to a file of that name."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(link if linked else pipe, b"whole")
        assert os.read(reader, 100) == b"whole"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


def test_a_folder_that_vanishes_while_we_work_in_it_is_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        write_atomic(folder / "here", b"")
        shutil.rmtree(folder)
        with pytest.raises(DiskError, match="No such file or directory"):
            write_atomic(folder / "here", b"")
        assert not folder.exists()
    write_atomic(folder / "here", b"")


def test_a_lock_names_process_and_host_while_it_is_held_and_nobody_after(tmp_path: Path) -> None:
    whose = f"process {os.getpid()} on {socket.gethostname()}"
    with locked(tmp_path):
        with pytest.raises(LockError, match=whose), locked(tmp_path):
            pass
        assert (tmp_path / "lock").read_text() == whose, "the refused one changes nothing"
    assert (tmp_path / "lock").read_bytes() == b""
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    assert (tmp_path / "lock").read_bytes() == b"", "nor after an error"


@pytest.mark.parametrize("gone", [False, True])
def test_the_end_of_a_lock_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    def broken(handle: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def work() -> None:
        monkeypatch.setattr(os, "ftruncate", broken)
        if gone:
            shutil.rmtree(tmp_path / "new")
        raise KeyError

    with pytest.raises(KeyError), locked(tmp_path / "new"):
        work()
    monkeypatch.undo()
    with locked(tmp_path / "new"):
        pass


def test_leftovers_of_a_killed_write_are_cleared_by_the_next_worker(tmp_path: Path) -> None:
    part_of(tmp_path / "state.safetensors").write_bytes(b"half")
    theirs = {"ours.part", ".video.part", ".video.123.part"}
    for name in theirs:
        (tmp_path / name).write_bytes(b"a name that we do not use")
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {"lock", *theirs}


def test_a_refused_folder_is_left_as_it_was(tmp_path: Path) -> None:
    def refuse() -> None:
        raise UsageError("not ours")

    part_of(tmp_path / "file").write_bytes(b"")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for lock in (False, True):
        if lock:
            before[tmp_path / "lock"] = b"theirs"
            (tmp_path / "lock").write_bytes(b"theirs")
        with pytest.raises(UsageError, match="not ours"), locked(tmp_path, refuse):
            pass
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\udcffb"])
def test_names_with_control_characters_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="control characters in its name"), locked(tmp_path / name):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["<script>", "a b\u3000c", "größe", "'; rm -rf x", "=1+1", "x" * 255])
def test_any_other_name_will_do(tmp_path: Path, name: str) -> None:
    with locked(tmp_path / name):
        write_atomic(tmp_path / name / "file", b"")


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    """Each read is of a whole write of one of them, and no write fails."""
    path = tmp_path / "file"
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(path, k)) for k in range(2)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen <= {_content(0), _content(1)}


def _content(k: int) -> bytes:
    return bytes([k]) * (1000 + 50_000 * k)


def _write(path: Path, k: int) -> None:
    for _ in range(200):
        write_atomic(path, _content(k))


def test_a_file_that_cannot_be_opened_now_is_not_called_damaged(tmp_path: Path) -> None:
    """With no file descriptors left, Python, safetensors and torch each fail in their own words."""
    path = tmp_path / "weights.safetensors"
    save_tensors(path, {"w": torch.ones(3)}, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 10, hard))
    held: list[int] = []
    errors = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        while True:
            try:
                load_tensors(path)
                break
            except CheckpointError as error:
                errors.append(error)
                os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in held:
            os.close(handle)
    assert "unable to open file" in str(errors[-1])
    assert not any(isinstance(error, DamagedError) for error in errors)


def test_a_folder_of_events_that_cannot_be_made_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(DiskError, match=r"cannot write .*tensorboard: File exists"):
        Events(tmp_path / "tensorboard", 0)


def test_a_state_that_cannot_be_moved_is_a_disk_error(tmp_path: Path) -> None:
    folder = Run(tmp_path)
    folder.save_state({"w": torch.ones(1)}, {})
    (folder.previous_path / "in the way").mkdir(parents=True)
    with pytest.raises(DiskError, match=rf"cannot write .*{folder.previous_path.name}: Is a directory"):
        folder.save_state({"w": torch.ones(1)}, {})
    assert load_tensors(folder.state_path)[0]["w"] == 1


def test_a_folder_without_a_readable_configuration_is_none_of_a_run(tmp_path: Path) -> None:
    folder = Run(tmp_path / "run")
    for reason in ("No such file or directory", "Is a directory"):
        with pytest.raises(
            CheckpointError, match=rf"is not the folder of a run: config\.json cannot be read: .*{reason}"
        ):
            _ = folder.config
        folder.config_path.mkdir(parents=True, exist_ok=True)


def test_training_and_evaluation_are_imported_without_what_only_unix_has() -> None:
    code = """
import signal, sys, filelock, tensorboard, torch, torch.distributed.nn
sys.modules["fcntl"] = None
del signal.SIGHUP, signal.SIGUSR1
import atlas
print(atlas.fit.__name__, atlas.evaluate.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["fit", "evaluate"], done.stderr
