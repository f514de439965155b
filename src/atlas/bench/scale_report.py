"""Measured scaling as plain data, as rows of text, and as Markdown; beside what the simulation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from atlas.bench.cluster import Job, Link, fitted
from atlas.bench.cost import Sizes, Work
from atlas.bench.report import facts, grid, markers, model_heading, quartiles, ratio
from atlas.bench.scale import ALONE, SHARE, THREADS, TOGETHER, Scaling

SCALE_MARKERS = markers("scale")
LINK_HEADINGS = ("gradients", "ms", "fitted ms")
SIMULATED_HEADINGS = (
    *("model", "method", "GFLOP", "GFLOP/s", "share ms", "computing ms", "messages ms", "simulated messages"),
    *("step ms", "simulated step", "error"),
)


def link_summary(seconds: Mapping[int, Sequence[float]], ranks: int) -> dict[str, Any]:
    """The link that fits the medians, and every second."""
    sizes, medians = list(seconds), [float(np.median(each)) for each in seconds.values()]
    link = fitted(ranks, sizes, medians)
    measured = [
        {"bytes": size, "median": median, "fitted": link.seconds(ranks, [size]), "seconds": seconds[size]}
        for size, median in zip(sizes, medians, strict=True)
    ]
    return {**asdict(link), "sizes": measured}


def scale_summary(scaling: Scaling, work: Work, sizes: Sizes, report: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of throughput, quartiles of the repeats' own; and the step that the simulation foretells.

    `work` is that of the whole batch. The simulation is told the time of one process and the link.
    """
    times = {setting: np.array(each) for setting, each in scaling.seconds.items()}
    link = Link(report["link"]["bandwidth"], report["link"]["latency"])
    speed = work.flops / float(np.median(times[ALONE]))
    job = Job(report["batch"], work.flops, work.backward_flops, sizes.messages, speed)
    ranks = report["processes"]
    return {
        "method": scaling.case.label,
        "flops": work.flops,
        "speed": speed,
        "together_over_alone": quartiles(times[ALONE] / times[TOGETHER]),
        "together_over_threads": quartiles(times[THREADS] / times[TOGETHER]),
        "threads_over_alone": quartiles(times[ALONE] / times[THREADS]),
        "simulated": {
            "computing": job.computing(ranks),
            "messages": link.seconds(ranks, job.messages),
            "step": job.seconds(ranks, link),
        },
        "seconds": scaling.seconds,
        "computing": scaling.computing,
        "messages": scaling.messages,
    }


def scale_headings(report: Mapping[str, Any]) -> tuple[str, ...]:
    processes, threads = report["processes"], report["threads"]
    alone, many = f"1 x {threads}", f"1 x {processes * threads}"
    together = f"{processes} x {threads}"
    times = (f"{setting} ms" for setting in (alone, many, together))
    return ("method", *times, f"{together} / {alone}", f"{together} / {many}", f"{many} / {alone}")


def scale_rows(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Text under `scale_headings`: medians, with the quartiles of the ratios in brackets."""
    return [
        (
            m["method"],
            *(_ms(np.median(m["seconds"][setting])) for setting in (ALONE, THREADS, TOGETHER)),
            *(
                ratio(m[f"{a}_over_{b}"])
                for a, b in ((TOGETHER, ALONE), (TOGETHER, THREADS), (THREADS, ALONE))
            ),
        )
        for m in methods
    ]


def simulated_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Text under `SIMULATED_HEADINGS`: medians, and how far the simulated step is off."""
    return [
        (
            *(model["model"], m["method"], f"{m['flops'] / 1e9:.3g}", f"{m['speed'] / 1e9:.1f}"),
            *(_ms(np.median(m["seconds"][SHARE])), _ms(np.median(np.max(m["computing"], 1)))),
            *(_ms(np.median(m["messages"])), _ms(m["simulated"]["messages"])),
            *(_ms(np.median(m["seconds"][TOGETHER])), _ms(m["simulated"]["step"]), f"{error(m):+.0%}"),
        )
        for model in report["models"]
        for m in model["methods"]
    ]


def error(method: Mapping[str, Any]) -> float:
    """Of the simulated step, relative to the measured one."""
    return float(method["simulated"]["step"] / np.median(method["seconds"][TOGETHER]) - 1)


def link_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (_size(each["bytes"]), f"{1e3 * each['median']:.2f}", f"{1e3 * each['fitted']:.2f}")
        for each in report["link"]["sizes"]
    ]


def elsewhere_note(part: Mapping[str, Any]) -> str:
    """How busy the machine was with something else, meanwhile."""
    return "" if part["elsewhere"] is None else f"; {part['elsewhere']:.0%} of the machine was busy elsewhere"


def link_facts(report: Mapping[str, Any]) -> str:
    link = report["link"]
    return (
        f"{report['processes']} processes, a link of {link['bandwidth'] / 1e9:.2f} GB/s and "
        f"{1e6 * link['latency']:.0f} µs{elsewhere_note(link)}"
    )


def scale_markdown(report: Mapping[str, Any]) -> str:
    """Ratios of each model, then what the simulation says, then the link that it was told."""
    parts = [f"Measured on {facts(report)}."]
    for model in report["models"]:
        parts += [
            model_heading(model) + elsewhere_note(model),
            grid(scale_headings(report), scale_rows(model["methods"])),
        ]
    errors = [error(m) for model in report["models"] for m in model["methods"]]
    parts += [
        f"**The simulation beside it**: off by {min(errors):+.0%} to {max(errors):+.0%}",
        grid(SIMULATED_HEADINGS, simulated_rows(report)),
        f"**The mean of gradients**: {link_facts(report)}",
        grid(LINK_HEADINGS, link_rows(report)),
    ]
    return "\n\n".join(parts)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _size(count: int) -> str:
    return f"{count // 2**20} MB" if count >= 2**20 else f"{count // 2**10} KB"
