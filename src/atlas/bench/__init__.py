"""What training and attacks cost, next to bare passes and to other libraries, as ratios in one run."""

from atlas.bench.apart import ApartError, apart
from atlas.bench.attack import OURS, Contest, Entry, Peers, compete, contest
from atlas.bench.attack_cases import AttackCase, attack_cases
from atlas.bench.attack_report import (
    ATTACK_HEADINGS,
    attack_facts,
    attack_markdown,
    attack_rows,
    attack_summary,
    model_title,
)
from atlas.bench.cases import MEASURED, REFERENCE, Case, case
from atlas.bench.match_report import (
    MATCH_HEADINGS,
    OWN_HEADINGS,
    match_facts,
    match_markdown,
    match_rows,
    match_summary,
    own_rows,
)
from atlas.bench.matches import MATCHED, Match, Side, Steps, match, play, steps
from atlas.bench.memory import Memory, memories
from atlas.bench.passes import EQUATIONS, Passes
from atlas.bench.peers import PEERS, Job, versions
from atlas.bench.profiled import Operator, trace
from atlas.bench.report import (
    HEADINGS,
    MEMORY_HEADINGS,
    check_markers,
    facts,
    markdown,
    markers,
    memory_rows,
    put_between_markers,
    rows,
    summary,
)
from atlas.bench.step import (
    WARM_UP,
    Pair,
    Settings,
    Timing,
    measure,
    pairs,
    random_batch,
    training_with,
)
from atlas.machine import machine

__all__ = [
    "ATTACK_HEADINGS",
    "EQUATIONS",
    "HEADINGS",
    "MATCHED",
    "MATCH_HEADINGS",
    "MEASURED",
    "MEMORY_HEADINGS",
    "OURS",
    "OWN_HEADINGS",
    "PEERS",
    "REFERENCE",
    "WARM_UP",
    "ApartError",
    "AttackCase",
    "Case",
    "Contest",
    "Entry",
    "Job",
    "Match",
    "Memory",
    "Operator",
    "Pair",
    "Passes",
    "Peers",
    "Settings",
    "Side",
    "Steps",
    "Timing",
    "apart",
    "attack_cases",
    "attack_facts",
    "attack_markdown",
    "attack_rows",
    "attack_summary",
    "case",
    "check_markers",
    "compete",
    "contest",
    "facts",
    "machine",
    "markdown",
    "markers",
    "match",
    "match_facts",
    "match_markdown",
    "match_rows",
    "match_summary",
    "measure",
    "memories",
    "memory_rows",
    "model_title",
    "own_rows",
    "pairs",
    "play",
    "put_between_markers",
    "random_batch",
    "rows",
    "steps",
    "summary",
    "trace",
    "training_with",
    "versions",
]
