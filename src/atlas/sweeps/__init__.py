"""Sweeps: many trials of one preset, by any number of workers, on top of Optuna.

folder/study.db         the study (SQLite), unless it is on a server
folder/trials/NNN/      a trial's run, as `atlas train` makes it
folder/scores/NNN/      the attack that scores it, if there is one
folder/claims/NNN/      the lock of the worker that does it
folder/table.*          all trials, best first: Markdown, CSV, JSON
folder/figure.*         clean and robust accuracy against each parameter (App. F)
folder/best.toml        the best trial as a preset
"""

from atlas.sweeps.study import Sweep
from atlas.sweeps.worker import work

__all__ = ["Sweep", "work"]
