"""The example jobs say what torchrun and we understand, as far as that can be told without a cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from atlas import presets

EXAMPLES = Path(__file__).parents[3] / "examples"
SLURM = {
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_JOB_ID": "17",
}


def check(words: list[str], folder: str) -> None:
    """That these are arguments of torchrun which train a preset there on two machines with four GPUs."""
    parsed = get_args_parser().parse_args(words)
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.max_restarts) == ("2", "4", 3)
    assert parsed.module
    assert parsed.rdzv_endpoint.endswith(":29400")
    command, name, *rest = parsed.training_script_args
    assert (parsed.training_script, command) == ("atlas", "train")
    assert name in presets.names()
    assert " ".join(rest).replace("=", " ") == f"--out {folder}"


def slurm(folder: Path, **more: str) -> list[str]:
    """The job script beside stand-ins for Slurm's commands and ours, which write down how they are called."""
    tools, calls = folder / "tools", folder / "calls"
    tools.mkdir(exist_ok=True)
    calls.write_text("")
    for name, says in {"srun": "", "atlas": "", "scontrol": "printf 'node1\\nnode2\\n'"}.items():
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {calls}\n{says}\n')
        (tools / name).chmod(0o755)
    environment = {**os.environ, **SLURM, **more, "PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["bash", str(EXAMPLES / "slurm.sh"), "cifar10-atlas-1", str(folder / "run")]
    subprocess.run(command, env=environment, check=more == {}, timeout=20, stdout=subprocess.DEVNULL)
    return [line for line in calls.read_text().splitlines() if "hostnames" not in line]


def test_the_slurm_job_trains_and_is_queued_again_until_it_has(tmp_path: Path) -> None:
    train, again = slurm(tmp_path)
    assert train.startswith("srun --kill-on-bad-exit=1 torchrun ")
    check(train.split()[3:], str(tmp_path / "run"))
    assert again == "scontrol requeue 17"
    assert len(slurm(tmp_path, SLURM_RESTART_COUNT="10")) == 1, "not for ever"


def test_the_slurm_job_evaluates_what_it_has_trained(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/last.safetensors").write_bytes(b"")
    assert slurm(tmp_path)[1:] == [f"atlas evaluate {tmp_path / 'run'} --suite paper"]


def test_the_kubernetes_job_trains() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    check(container["args"], "/atlas/runs/mine")
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
