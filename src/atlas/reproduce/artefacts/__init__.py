"""The artefacts of the paper by name. To add one: a file here with its declaration, and a line below."""

from __future__ import annotations

from atlas.reproduce.artefact import Artefact
from atlas.reproduce.artefacts import table1

ARTEFACTS: dict[str, Artefact] = {artefact.name: artefact for artefact in (*table1.ARTEFACTS,)}
