"""A sweep on a real PostgreSQL server, by two workers that share nothing but it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import runs
from tests.faults.test_sweep import SHORT, rows

PASSWORD = "it is+a/secret"
WRITTEN = "it%20is%2Ba%2Fsecret"
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if os.name == "posix" else []
AS_USER: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []}


def binary(name: str) -> Path:
    found = shutil.which(name)
    if found is None and not SERVERS:
        pytest.skip("PostgreSQL is not installed here: scripts/system_packages.sh postgresql")
    return Path(found) if found else SERVERS[-1] / name


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server of our own, with a user and a database called atlas."""
    initdb, control = binary("initdb"), binary("pg_ctl")
    who: dict[str, Any] = AS_USER if os.getuid() == 0 else {}  # the server refuses to be root
    folder = Path(tempfile.mkdtemp(prefix="atlas-postgresql-"))
    secret = folder / "secret"
    secret.write_text(PASSWORD)
    if who:
        for path in (folder, secret):
            shutil.chown(path, "postgres", "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    place, options = str(folder / "data"), {"check": True, "timeout": 60, "cwd": folder, **who}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [initdb, "-D", place, "-U", "atlas", "-A", "scram-sha-256", "--pwfile", secret, "--no-sync"],
        **options,
        **quiet,
    )
    settings = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    log = str(folder / "log")
    subprocess.run([control, "-D", place, "-w", "-l", log, "-o", settings, "start"], **options, **quiet)
    try:
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        command = [binary("createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "atlas", "atlas"]
        subprocess.run(command, env=environment, **options)
        yield port
    finally:
        subprocess.run([control, "-D", place, "-m", "immediate", "stop"], **options, **quiet)
        shutil.rmtree(folder)


@pytest.mark.timeout(300)
def test_two_workers_of_two_folders_share_a_grid_and_keep_the_password(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.make_task(tmp_path)
    grid = ("--grid", "method.alpha=1e-4,1e-3", "--grid", "method.beta=0.1,1", *SHORT)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    address = f"127.0.0.1:{server}/atlas"
    first = runs.start(
        tmp_path, "sweep", "task.toml", "--out", "one/pg", *grid, "--storage", f"postgresql://atlas@{address}"
    )
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("ATLAS_STORAGE", f"postgresql://atlas:{WRITTEN}@{address}")
    runs.wait_for_metrics(tmp_path / "one/pg/trials/001", first, 0)
    first.send_signal(signal.SIGSTOP)  # else the first may be done before the second has started
    second = runs.start(tmp_path, "sweep", "task.toml", "--out", "two/pg", *grid)
    runs.wait_for_metrics(tmp_path / "two/pg/trials/002", second, 0)
    first.send_signal(signal.SIGCONT)
    said = [runs.finish(first), runs.finish(second)]
    trials = [sorted(path.name for path in tmp_path.glob(f"{name}/pg/trials/*")) for name in ("one", "two")]
    assert sorted(trials[0] + trials[1]) == ["001", "002", "003", "004"], "each once, on one of the two"
    assert all(trials), "one worker did it all"
    last = max((rows(tmp_path / name / "pg") for name in ("one", "two")), key=len)
    assert [row["state"] for row in last] == ["done"] * 4
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, WRITTEN):
        assert secret not in said[0] + said[1]
        assert secret.encode() not in files


def test_a_wrong_password_is_said_in_one_line_and_not_shown(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.make_task(tmp_path)
    monkeypatch.setenv("ATLAS_STORAGE", f"postgresql://atlas:wrong-{WRITTEN}@127.0.0.1:{server}/atlas")
    process = runs.start(tmp_path, "sweep", "task.toml", "--grid", "method.beta=0.1,1")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 6, output
    assert "password authentication failed" in output
    assert "secret" not in output
    assert len(output.splitlines()) == 1
