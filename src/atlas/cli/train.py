"""`atlas train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from atlas import presets
from atlas.cli.console import Device, Root, Settings, one_voice, say
from atlas.config import ConfigDict, overridden, parse_value
from atlas.data.load import lacks_test_set
from atlas.distributed.launch import checked_device, launch, local_device, size, started
from atlas.errors import UsageError
from atlas.files import refuse_in_use
from atlas.training import ProcessGroup, RunConfig, connected, load_config
from atlas.training import train as run_training
from atlas.training.precision import fastest
from atlas.training.settings import REGISTRIES


def train(
    what: Annotated[
        str | None, Argument(metavar="[PRESET_OR_FILE]", help="A preset (`atlas presets`) or a .toml file.")
    ] = None,
    settings: Settings = None,
    out: Annotated[Path | None, Option(help="The run's folder; default: runs/NAME.")] = None,
    resume: Annotated[Path | None, Option(metavar="RUN", help="Resume the run in this folder.")] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Start from these weights (.safetensors, .pt, .pth, or a run's folder) instead of random "
            "ones; the preset `finetune` has a suitable learning rate. Short for --set weights=FILE.",
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="Short for --set training.seed=SEED.")] = None,
    on_collapse: Annotated[
        str | None, Option(help="continue, stop or rollback: short for --set training.on_collapse=...")
    ] = None,
    precision: Annotated[
        str | None,
        Option(
            help="float32, craft (adversaries in bfloat16), bfloat16 (the loss too), bfloat16-all (its "
            "Jacobian too): short for --set training.precision=... Or auto: what was measured to be fast "
            "and, on MNIST, as accurate on such a device; --set goes before it."
        ),
    ] = None,
    root: Root = None,
    device: Device = None,
    processes: Annotated[int, Option(min=1, help="Share each batch among so many processes.")] = 1,
    allow_changes: Annotated[bool, Option("--allow-changes", help="Resume with other settings.")] = False,
) -> None:
    """Train a robust classifier.

    - `atlas train demo-atlas-1` : on the embedded data, a minute or two on a CPU
    - `atlas train mnist-quick-atlas-1 --set method.alpha=1e-4 --set threat.eps=0.2 --out runs/mine`
    - `atlas train mnist-quick-atlas-1 --precision auto` : faster where the processor knows bfloat16
    - `atlas train mine.toml` : your own model and data; `atlas init DATA` writes such a file
    - `atlas train finetune --weights old.pth --set model=wrn-28-8 --set data=cifar10` : trained weights
    - `atlas train --resume runs/mine` : after a crash or Ctrl-C, on a CPU with bit-identical results
    - `torchrun --nproc-per-node 8 -m atlas train cifar10-atlas-1` : on 8 GPUs; repeat it to resume
    """
    if (what is None) == (resume is None):
        raise UsageError("got neither or both of PRESET_OR_FILE and --resume RUN; give one of them")
    if resume is not None:
        if out is not None:
            raise UsageError("--resume continues in the run's folder: omit --out")
        folder, table = resume, load_config(resume).table()
    else:
        name, table = presets.load_preset(str(what))
        folder = out or Path("runs") / name
    short = {
        "weights": weights,
        "training.seed": seed,
        "training.on_collapse": on_collapse,
        "training.precision": None if precision == "auto" else precision,
    }
    changes = [setting(text) for text in settings or []]
    changes += [(key, value) for key, value in short.items() if value is not None]
    config = RunConfig.of(changed := overridden(table, changes, REGISTRIES))
    if started():
        if processes not in (1, size()):
            raise UsageError(f"--processes {processes} among {size()} by torchrun: omit --processes")
    elif what is not None and (folder / "config.json").exists():
        refuse_in_use(folder)
        raise UsageError(
            f"{folder} already has a config.json: continue its run with --resume {folder}, or choose another "
            "--out"
        )
    elif processes > 1:
        raise Exit(launch(sys.argv[1:], processes))
    with one_voice(), connected() as group:
        if group.first and (dropped := _dropped(table, changed)):
            say(f"--set has changed a name, which drops the settings of the old one: {', '.join(dropped)}")
        if precision == "auto":
            changes = [*_auto(folder, device, group), *changes]
            config = RunConfig.of(overridden(table, changes, REGISTRIES))
        if group.first:
            say(f"writing to {folder}")
        result = run_training(
            config, folder, group=group, data_root=root, device=device, allow_changes=allow_changes
        )
        if group.first:
            say(f"{result}; weights in {folder / 'best.safetensors'}")
            elsewhere = " --data DATA (this data has no test set)" if lacks_test_set(config.data) else ""
            say(f"Next: atlas evaluate {shlex.quote(str(folder))}{elsewhere}")


def _dropped(before: ConfigDict, after: ConfigDict, where: str = "") -> list[str]:
    """The settings that are gone because the name of what they belonged to has changed."""
    found = []
    for key, value in before.items():
        now = after.get(key)
        if isinstance(value, dict) and isinstance(now, dict):
            found += _dropped(value, now, f"{where}{key}.")
        elif key not in after and before.get("name") != after.get("name"):
            found.append(f"{where}{key}={value}")
    return found


def _auto(folder: Path, device: str | None, group: ProcessGroup) -> list[tuple[str, Any]]:
    """What `auto` means for all ranks: what the run in the folder has, or what is fastest for the first."""
    if (folder / "config.json").exists():
        training = load_config(folder).training
        mine = {"precision": training.precision, "channels_last": training.channels_last}
    else:
        mine = fastest(checked_device(local_device(device)))
    shared = group.from_first(({}, mine))
    assert shared is not None
    return [(f"training.{key}", value) for key, value in shared[1].items()]


def setting(text: str) -> tuple[str, Any]:
    """The dotted key and the value of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"--set must be KEY=VALUE, such as method.alpha=1e-4, got {text!r}")
    return key, parse_value(value)
