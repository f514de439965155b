"""The artefacts of the paper by name. To add one: a file here with its declaration, and a line below."""

from __future__ import annotations

from atlas_paper.artefact import Artefact
from atlas_paper.artefacts import collapse, loss_curves, sweeps, tables

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for module in (tables, loss_curves, sweeps, collapse)
    for artefact in module.ARTEFACTS
}
