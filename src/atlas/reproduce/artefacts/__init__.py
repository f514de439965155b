"""The artefacts of the paper by name. To add one: a file here with its declaration, and a line below."""

from __future__ import annotations

from atlas.reproduce.artefact import Artefact
from atlas.reproduce.artefacts import collapse, loss_curves, sweeps, table1, tables

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for module in (table1, tables, loss_curves, sweeps, collapse)
    for artefact in module.ARTEFACTS
}
