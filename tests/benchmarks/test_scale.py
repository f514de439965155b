"""`python -m benchmarks scale`: who works when, with real processes; ratios by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atlas import models
from atlas.machine import machine
from atlas.training import ProcessGroup
from benchmarks import scale
from benchmarks.command import main
from benchmarks.equations import case
from benchmarks.scale import ALONE, THREADS, TOGETHER, blocks, contestants, measure_link
from benchmarks.step import random_batch
from benchmarks.tables import TextTable
from benchmarks.timing import WARM_UP
from tests.faults import ranks as real

SMALL = ["--model", "cnn-small", "--shape", "1x8x8", "--batch", "9", "--method", "adv-1", "--repeats", "2"]


def write_who_works(ranks: ProcessGroup, folder: Path) -> None:
    """For each setting: the images of every forward pass and the threads; and what the steps led to."""
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    now, made = "", list[nn.Module]()

    def look(module: nn.Module, args: tuple[Tensor]) -> None:
        seen[now].append((len(args[0]), torch.get_num_threads()))

    def make() -> nn.Module:
        made.append(models.build("wrn-10-1", shape=(3, 8, 8)))
        made[-1].register_forward_pre_hook(look)
        return made[-1]

    group = {
        c.name: c for c in contestants(make, case("adv-1"), random_batch(9, (3, 8, 8)), ranks, threads=1)
    }
    seconds = []
    for now in (ALONE, TOGETHER, THREADS, TOGETHER):
        seen[now].clear()
        seconds.append(group[now].run(0)[0])
    weights = [float(value.double().sum()) for value in made[-1].state_dict().values()]
    about = {"seen": seen, "seconds": seconds, "weights": weights}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(about))


def test_the_first_works_alone_and_then_all_on_their_shares(tmp_path: Path) -> None:
    real.run(2, write_who_works, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    # The attack's forward pass and the training one: of all 9 images, or of 4 and 5.
    assert first["seen"] == {
        ALONE: [[9, 1]] * 3,  # the first step also probes the Jacobian
        THREADS: [[9, 2]] * 2,
        TOGETHER: [[4, 1]] * 2,
    }
    assert {key: value for key, value in second["seen"].items() if value} == {TOGETHER: [[5, 1]] * 2}
    assert first["weights"] == second["weights"]
    assert first["seconds"] == second["seconds"], "all know the slowest"
    assert min(first["seconds"]) > 0


def test_messages_of_all_sizes_are_timed() -> None:
    sent: list[int] = []

    class Noted(ProcessGroup):
        def mean_gradients(self, model: nn.Module, weight: float) -> None:
            sent.append(sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))

    found = measure_link(Noted(), 3, sizes=(1024, 4096))
    assert [(each["bytes"], len(each["seconds"])) for each in found] == [(1024, 3), (4096, 3)]
    assert sorted(sent) == [1024] * (3 + WARM_UP) + [4096] * (3 + WARM_UP)
    assert (scale.SIZES[0], scale.SIZES[-1]) == (1024, 64 * 2**20)


def test_ratios_of_throughput_by_hand() -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    seconds = {ALONE: [8.0, 80.0, 8.0], THREADS: [6.0, 60.0, 5.0], TOGETHER: [5.0, 50.0, 5.0]}
    method = {"method": "atlas-1", "seconds": seconds}
    model = {"model": "m", "shape": [1, 2, 2], "elsewhere": 0.204, "methods": [method]}
    link = {"sizes": [{"bytes": 4096, "median": 0.002}], "elsewhere": None}
    about = {"machine": machine(), "repeats": 3, "processes": 2, "threads": 1}
    _, heading, table, gradients, sizes = blocks({**about, "models": [model], "link": link})
    assert heading == "**m**, 1x2x2; background load 20%"
    assert gradients == "**The mean of gradients** of 2 processes"
    assert isinstance(table, TextTable)
    assert isinstance(sizes, TextTable)
    assert table.headings[1:5] == ("1 x 1 ms", "1 x 2 ms", "2 x 1 ms", "2 x 1 / 1 x 1")
    assert table.rows == [
        (
            *("atlas-1", "8000.0", "6000.0", "5000.0"),
            *("1.60 [1.60, 1.60]", "1.20 [1.10, 1.20]", "1.33 [1.33, 1.47]"),
        )
    ]
    assert sizes.rows == [("4 KB", "2.00")]


def benchmarks_in(folder: Path, output: Path, *arguments: str) -> None:
    """`python -m benchmarks ARGUMENTS` in a process that has imported everything."""
    real.command(folder, output, *arguments, main=partial(main, list(arguments)))


def test_the_command_measures_prints_and_writes(tmp_path: Path) -> None:
    said = tmp_path / "said"
    team = real.start(2, benchmarks_in, tmp_path, said, "scale", *SMALL, "--json", "times.json")
    assert real.ended(team) == [0, 0], said.read_text()
    report = json.loads((tmp_path / "times.json").read_text())
    assert (report["batch"], report["processes"], report["threads"], report["repeats"]) == (9, 2, 1, 2)
    assert [each["bytes"] for each in report["link"]["sizes"]] == list(scale.SIZES)
    (model,) = report["models"]
    (method,) = model["methods"]
    assert (model["model"], model["shape"], method["method"]) == ("cnn-small", [1, 8, 8], "adv-1")
    assert {name: len(each) for name, each in method["seconds"].items()} == {
        ALONE: 2,
        THREADS: 2,
        TOGETHER: 2,
    }
    assert said.read_text().count("times written to times.json") == 1, "the first process speaks for all"


def test_the_command_starts_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def start(arguments: list[str], of: int, module: str) -> int:
        asked.extend([arguments, of, module])
        return 8

    monkeypatch.setattr(scale, "launch", start)
    monkeypatch.setattr("sys.argv", ["benchmarks", "scale", "--processes", "3"])
    with pytest.raises(SystemExit) as ended:
        main(["scale", "--processes", "3"])
    assert ended.value.code == 8
    assert asked == [["scale", "--processes", "3"], 3, "benchmarks"]


def test_wrong_options_are_refused_before_any_process_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "launch", None)
    for words in (["--batch", "5", "--processes", "3"], ["--method", "atlass"], ["--model", "cnnn"]):
        with pytest.raises(SystemExit) as ended:
            main(["scale", *words])
        assert ended.value.code == 2
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        main(["scale"])
    assert "needs >= 2 processes with >= 2 images each, got 1 for batches of 128" in capsys.readouterr().err
