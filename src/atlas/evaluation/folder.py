"""The folder of an evaluation.

config.json             model, data, threat, attacks and seed, by which the folder is known; beside them, in
                        "code", the user's own code behind the model, to tell what has changed
clean.npz               ids, labels, logits and the verdict on the clean images
gradients.npz           gradients at a few of them
surrogates-LABEL.npz    the answers of a transfer attack's surrogates to the clean images
attack-LABEL.npz        per example: attempt, step, margin, queries; written when the attack is over
images-LABEL.safetensors  the images that fool, with their ids, where they were asked for
state-LABEL.safetensors an attack under way: all that going on needs
summary.json            accuracies with n and interval, flags; the same bits whatever happened on the way
timing.jsonl            seconds, which are not
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.checkpoint import load_tensors, save_tensors
from atlas.config import differences
from atlas.data import npz
from atlas.disk import part_of, refuse_strangers, write_atomic
from atlas.errors import CheckpointError, DamagedError, DataError, UsageError

CONFIG, SUMMARY, PROGRESS = "config.json", "summary.json", "progress.json"
SAME = 1e-3
"""Logits of one model may differ by this share: other batches and other machines round otherwise."""
TURNED = 0.1
"""The same for its gradients, all together."""


class EvaluationFolder:
    """Paths and files of one evaluation.

    `code` is what the model at hand runs of the user's own code, by `atlas.models.code.own_code`.
    """

    def __init__(self, path: Path, code: Mapping[str, str] | None = None) -> None:
        self.path, self.code = path, dict(code or {})

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else than this evaluation."""
        if not (self.path / CONFIG).exists():
            refuse_strangers(self.path)
            return
        known = self.about()
        if "attacks" not in known:
            raise UsageError(f"{self.path} is the folder of a run; choose another for the evaluation")
        if found := differences(known, json.loads(json.dumps(about))):
            what, why = "; ".join(found), ""
            if known.get("model") != about["model"]:
                why = self._other_model(str(known.get("model")))
            raise UsageError(f"{self.path} holds another evaluation: {what}; {why}choose another folder")

    def _other_model(self, key: str) -> str:
        """Why the model is not the one of this folder, and how to continue all the same."""
        known = self.known_code()
        changed = [name for name in sorted({*known, *self.code}) if known.get(name) != self.code.get(name)]
        if not known or not changed:
            return f"the model has other layers{', weights or code' if changed else ' or weights'}: "
        more = ", ..." if len(changed) > 3 else ""
        return (
            f"the code of the model has changed ({', '.join(changed[:3])}{more}): if it computes the same, "
            f"continue with model_key={key!r} in Python, else "
        )

    def claim(self, about: Mapping[str, Any]) -> None:
        """Take the folder for this evaluation."""
        self.check(about)
        if not (self.path / CONFIG).exists():
            known = {**about, **({"code": self.code} if self.code else {})}
            text = json.dumps(known, indent=2, sort_keys=True) + "\n"
            write_atomic(self.path / CONFIG, text.encode())

    def about(self) -> dict[str, Any]:
        """Of which evaluation the folder is."""
        known = self._config()
        known.pop("code", None)
        if known.get("standing") and "order" not in known:  # an older version kept it in the summary alone
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                known["order"] = list(json.loads((self.path / SUMMARY).read_text())["attacks"])
        return known

    def known_code(self) -> dict[str, str]:
        """What the model of this folder ran of the user's own code, where that was noted."""
        code = self._config().get("code")
        return code if isinstance(code, dict) else {}

    def _config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; choose another folder") from error

    def is_of(self, about: Mapping[str, Any]) -> bool:
        """Whether this is a folder of that evaluation."""
        try:
            return self.about() == about
        except CheckpointError:
            return False

    def answers(self, clean: Mapping[str, Tensor], *, random: bool) -> Mapping[str, Tensor]:
        """The model's clean answers: those of the first time, by which attacks that are over went.

        A model that answers otherwise than then is another, unless it is random. A fingerprint cannot see
        what a function or a plain attribute of a module does; its answers can.
        """
        known = self.load_columns("clean")
        if known is None or set(known) != set(clean):
            self.save_columns("clean", clean)
            return clean
        same = (
            known["logits"].shape == clean["logits"].shape
            if random
            else alike(known["logits"], clean["logits"])
        )
        if not same or not torch.equal(known["ids"], clean["ids"]):
            raise UsageError(
                f"{self.path} holds the evaluation of another model: it answered the clean images "
                "differently; choose another folder"
            )
        return known

    def check_surrogates(self, label: str, ask: Callable[[], Tensor]) -> None:
        """Refuse an attack whose surrogates answer the clean images differently from those of the first time.

        `ask` gives their answers, [N, ...]. Random surrogates are not compared.
        """
        name, answers = f"surrogates-{slug(label)}", ask()
        known = (self.load_columns(name) or {}).get("logits")
        if known is None:
            self.save_columns(name, {"logits": answers})
        elif not alike(known, answers) and alike(answers, ask()):
            raise UsageError(
                f"{self.path} holds an evaluation with other surrogates: those of {label} answered the clean "
                "images differently; choose another folder"
            )

    def check_gradients(self, gradients: Tensor) -> None:
        """Those of some clean images, [K, ...]: a model that answers as before may have others by now."""
        known = (self.load_columns("gradients") or {}).get("gradients")
        if known is None or known.shape != gradients.shape:
            self.save_columns("gradients", {"gradients": gradients})
        elif far_apart(known, gradients):
            raise UsageError(
                f"{self.path} holds the evaluation of another model: its gradients were others; "
                "choose another folder"
            )

    def holds(self, label: str, *, images: bool) -> bool:
        """Whether the attack is over, and its images are there if they are wanted."""
        done = self.load_columns(f"attack-{slug(label)}") is not None
        return done and (not images or self._images(label).exists())

    def save_columns(self, name: str, columns: Mapping[str, Tensor]) -> None:
        buffer = io.BytesIO()
        # NumPy knows no bfloat16.
        whole = {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in columns.items()}
        arrays: dict[str, Any] = {key: value.numpy() for key, value in whole.items()}
        np.savez(buffer, **arrays)
        write_atomic(self.path / f"{name}.npz", buffer.getvalue())

    def load_columns(self, name: str) -> dict[str, Tensor] | None:
        """The columns of this name; None where they are not there or damaged, to be made again."""
        try:
            arrays = npz.read(self.path / f"{name}.npz")
            return {
                key: torch.from_numpy(np.require(array, requirements="W")) for key, array in arrays.items()
            }
        except (
            FileNotFoundError,
            DataError,
            TypeError,
        ):  # the last: a type of numbers that torch does not have
            return None

    def save_state(self, label: str, tensors: Mapping[str, Tensor], seconds: float) -> None:
        save_tensors(self._state(label), tensors, {"seconds": seconds})

    def load_state(self, label: str) -> tuple[dict[str, Tensor], float] | None:
        """The state of an attack under way, and its seconds; None where it is not there or damaged."""
        path = self._state(label)
        if not path.exists():
            return None
        try:
            tensors, about = load_tensors(path)
            return tensors, float(about["seconds"])
        except (DamagedError, KeyError, ValueError):
            path.replace(path.with_suffix(".damaged"))
            return None

    def drop_state(self, label: str) -> None:
        self._state(label).unlink(missing_ok=True)

    def save_images(self, label: str, ids: Tensor, x_adv: Tensor) -> None:
        save_tensors(self._images(label), {"ids": ids, "x_adv": x_adv}, {})

    def load_images(self, label: str) -> tuple[Tensor, Tensor] | None:
        """The ids and the images that fool, where they were kept."""
        if not self._images(label).exists():
            return None
        tensors, _ = load_tensors(self._images(label))
        return tensors["ids"], tensors["x_adv"]

    def note_progress(self, label: str, share: float, robust: int, n: int) -> None:
        """Where the attack under way is, for who watches from another process."""
        part = part_of(self.path / PROGRESS)
        part.write_text(json.dumps({"label": label, "share": share, "robust": robust, "n": n}))
        part.replace(self.path / PROGRESS)

    def progress(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.path / PROGRESS).read_text()))
        except (OSError, ValueError):
            return None

    def note_time(self, label: str, seconds: float) -> None:
        with (self.path / "timing.jsonl").open("a") as file:
            file.write(json.dumps({"attack": label, "seconds": round(seconds, 3)}) + "\n")

    def times(self) -> dict[str, float]:
        """The seconds of each attack that is over."""
        path, found = self.path / "timing.jsonl", dict[str, float]()
        for line in path.read_text().splitlines() if path.exists() else ():
            with suppress(ValueError, KeyError, TypeError):  # a line that was cut off
                row = json.loads(line)
                found[row["attack"]] = float(row["seconds"])
        return found

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomic(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def _images(self, label: str) -> Path:
        return self.path / f"images-{slug(label)}.safetensors"

    def _state(self, label: str) -> Path:
        return self.path / f"state-{slug(label)}.safetensors"


def slug(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "attack"


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether logits differ by no more than rounding; NaN and infinity have to be at the same places."""
    if a.shape != b.shape:
        return False
    b = b.to(a.dtype)
    largest = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    return torch.allclose(a, b, SAME, SAME * largest, equal_nan=True)


def far_apart(a: Tensor, b: Tensor) -> bool:
    """Whether gradients differ by more than rounding, which may turn a few units of a network on or off."""
    return bool((a - b).norm() > TURNED * torch.maximum(a.norm(), b.norm()))
