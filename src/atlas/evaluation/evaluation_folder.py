"""The folder of an evaluation.

config.json             model, data, threat, attacks and seed, by which the folder is known; beside them, in
                        "code", the user's own code behind the model, to tell what has changed
clean.npz               ids, labels, logits and the verdict on the clean images
gradients.npz           gradients at a few of them
surrogates-LABEL.npz    the answers of a transfer attack's surrogates to the clean images
attack-LABEL.npz        per example: attempt, step, margin, queries; written when the attack is over
images-LABEL.safetensors  the images that fool, with their ids, where they were asked for
state-LABEL.safetensors an attack under way: all that resuming needs
summary.json            accuracies with n and interval, flags; bit-identical whatever happened on the way
timing.jsonl            seconds, which are not; damaged lines are skipped

All but the last carry a checksum and the key of their evaluation, so that a changed file, or one of another
evaluation, is noticed. Folders of older versions have none of this, and are read all the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.checkpoint import digest, load_tensors, save_tensors
from atlas.config import differences, fingerprint
from atlas.data.readers import add_npz_note, npz_note, read_npz
from atlas.errors import CheckpointError, DamagedError, DataError, UsageError
from atlas.evaluation.flags import Flag
from atlas.evaluation.results import AttackResult, Report
from atlas.files import require_empty_dir, write_atomic

CONFIG, SUMMARY, TIMING = "config.json", "summary.json", "timing.jsonl"
CLEAN, GRADIENTS = "clean.npz", "gradients.npz"
UNSEALED = "has no checksum, unlike the rest of this evaluation"


def slug(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "attack"


def file_of(part: str, label: str) -> str:
    """The file of an attack: its part "attack", "surrogates", "images" or "state"."""
    suffix = "npz" if part in ("attack", "surrogates") else "safetensors"
    return f"{part}-{slug(label)}.{suffix}"


class EvaluationFolder:
    """The files of one evaluation.

    `code` is what the model at hand runs of the user's own code, by `atlas.models.code.user_code`; `say` is
    told which files were damaged and are made again.
    """

    def __init__(
        self,
        path: Path,
        code: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path, self.code, self.say = path, dict(code or {}), say

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).exists()

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else than this evaluation."""
        if not self.has_config:
            require_empty_dir(self.path)
            return
        try:
            known = self.about()
        except CheckpointError as error:
            raise type(error)(f"{error}; choose another folder") from error
        if "attacks" not in known:
            raise UsageError(f"{self.path} is the folder of a run; choose another for the evaluation")
        if found := differences(known, json.loads(json.dumps(about))):
            why = self._other_model(known.get("model")) if known.get("model") != about["model"] else ""
            raise UsageError(
                f"{self.path} holds another evaluation: {'; '.join(found)}; {why}choose another folder"
            )

    def _other_model(self, key: object) -> str:
        """Why the model is not the one of this folder, and how to continue all the same."""
        known = self.known_code()
        changed = [name for name in sorted({*known, *self.code}) if known.get(name) != self.code.get(name)]
        if not known or not changed:
            return "the model has other layers or weights: "
        names = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        return (
            f"the code of the model has changed ({names}): if it computes the same, continue with "
            f"model_key={key!r} in Python, else "
        )

    def claim(self, about: Mapping[str, Any]) -> None:
        """Take the folder for this evaluation."""
        self.check(about)
        if not self.has_config:
            known = {**about, **({"code": self.code} if self.code else {})}
            write_sealed(self.path / CONFIG, json.loads(json.dumps(known, sort_keys=True)))

    def about(self) -> dict[str, Any]:
        """Of which evaluation the folder is."""
        known = self._config()[0]
        if known.get("standing") and "order" not in known:  # an older version kept it in the summary alone
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                known["order"] = list(json.loads((self.path / SUMMARY).read_text())["attacks"])
        return known

    def known_code(self) -> dict[str, str]:
        """What the model of this folder ran of the user's own code, where that was noted."""
        return self._config()[1]

    def _config(self) -> tuple[dict[str, Any], dict[str, str], bool]:
        """What the evaluation is about, the code behind its model, and whether its files have checksums."""
        table, sealed = read_sealed(self.path / CONFIG)
        code = table.pop("code", None)
        return table, code if isinstance(code, dict) else {}, sealed

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a file of this evaluation: .npz, which other programs can read, or .safetensors."""
        path = self.path / name
        (save_npz if path.suffix == ".npz" else save_tensors)(path, tensors, self._mark(path))

    def load(self, name: str) -> dict[str, Tensor] | None:
        """The tensors of a file, verified to be of this evaluation; None where there is no such file."""
        path = self.path / name
        if not path.exists():
            return None
        tensors, about = (load_npz if path.suffix == ".npz" else load_tensors)(path)
        mark = {key: about[key] for key in ("evaluation", "part") if key in about}
        if not mark and self.has_config and self._config()[2]:
            raise DamagedError(f"{path} {UNSEALED}")
        if mark and mark != self._mark(path):
            raise DamagedError(f"{path} belongs to another evaluation")
        return tensors

    def _mark(self, path: Path) -> dict[str, str]:
        """What ties a file to this evaluation."""
        return {"evaluation": fingerprint(self._config()[0]) if self.has_config else "", "part": path.stem}

    def reuse(self, name: str) -> dict[str, Tensor] | None:
        """As `load`, for a caller who can make it again: a damaged file is put aside, and said."""
        try:
            return self.load(name)
        except DamagedError as error:
            self.put_aside(name, str(error))
            return None

    def reuse_or_save(self, name: str, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the file holds; where there is none, or one of an older version with less in it, these."""
        known = self.reuse(name)
        if known is not None and known.keys() == tensors.keys():
            return known
        self.save(name, tensors)
        return tensors

    def verdicts(self, label: str, *, images: bool) -> dict[str, Tensor] | None:
        """The columns of an attack that is over, and whose images are there if they are needed."""
        found = self.reuse(file_of("attack", label))
        return None if images and self.reuse(file_of("images", label)) is None else found

    def put_aside(self, name: str, why: str) -> None:
        """Rename a file that cannot be used, so that it is made again."""
        path = self.path / name
        path.replace(path.with_suffix(".damaged"))
        self.say(f"{why}; it was renamed to {path.with_suffix('.damaged').name} and is made again")

    def drop_state(self, label: str) -> None:
        (self.path / file_of("state", label)).unlink(missing_ok=True)

    def note_time(self, label: str, seconds: float) -> None:
        with suppress(OSError), (self.path / TIMING).open("a") as file:  # nothing depends on it
            file.write(json.dumps({"attack": label, "seconds": round(seconds, 3)}) + "\n")

    def times(self) -> dict[str, float]:
        """The seconds of each attack that is over; whatever cannot be read is skipped."""
        found, lines = dict[str, float](), list[bytes]()
        with suppress(OSError):
            lines = (self.path / TIMING).read_bytes().splitlines()
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                row = json.loads(line)
                label, seconds = row["attack"], float(row["seconds"])
                if isinstance(label, str) and 0 <= seconds < math.inf:
                    found[label] = seconds
        return found

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        write_sealed(self.path / SUMMARY, summary)

    def load_summary(self) -> dict[str, Any]:
        """The summary, verified to be that of this evaluation."""
        path = self.path / SUMMARY
        summary, sealed = read_sealed(path)
        if self.has_config:
            known, _, expected = self._config()
            if expected and not sealed:
                raise DamagedError(f"{path} {UNSEALED}")
            if found := differences(known, summary["about"]):
                raise DamagedError(f"{path} does not match {CONFIG}: {'; '.join(found)}")
        return summary


def save_npz(path: Path, columns: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Columns and a JSON-able table in one .npz file with a checksum over both."""
    # NumPy knows no bfloat16.
    whole = {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in columns.items()}
    arrays: dict[str, Any] = {key: value.numpy() for key, value in whole.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    note = json.dumps({**about, "sha256": digest(whole, json.dumps(about))})
    write_atomic(path, add_npz_note(buffer.getvalue(), note))


def load_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The columns and the table of a file by `save_npz`, verified; older versions wrote no table."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read now: {error.strerror}") from error
    try:
        note = npz_note(path, content)
        arrays = read_npz(path, content=content)
        columns = {k: torch.from_numpy(np.require(v, requirements="W")) for k, v in arrays.items()}
        about = dict(json.loads(note or "{}"))
    except (DataError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if note and about.pop("sha256", None) != digest(columns, json.dumps(about)):
        raise DamagedError(f"{path} is damaged: its content does not match its checksum")
    return columns, about


def write_sealed(path: Path, table: Mapping[str, Any]) -> None:
    """A table as JSON with a checksum."""
    text = json.dumps(table)
    sealed = {**table, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    write_atomic(path, (json.dumps(sealed, indent=2) + "\n").encode())


def read_sealed(path: Path) -> tuple[dict[str, Any], bool]:
    """The table of a JSON file, and whether it had a checksum, which older versions did not write."""
    try:
        table = dict(json.loads(path.read_bytes()))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    expected = table.pop("sha256", None)
    if expected is not None and expected != hashlib.sha256(json.dumps(table).encode()).hexdigest():
        raise DamagedError(f"{path} is damaged: its content does not match its checksum")
    return table, expected is not None


def load_report(path: Path) -> Report:
    """The report of a finished evaluation.

    Every file is verified: its checksum (older versions wrote none), that it belongs to this evaluation, and
    that its values are possible and agree with those of the other files.
    """
    place = EvaluationFolder(path)
    if not (path / SUMMARY).exists() and (inside := sorted(path.glob(f"evaluations/*/{SUMMARY}"))):
        names = ", ".join(str(each.parent) for each in inside)
        raise CheckpointError(f"{path} is a run; name one of its evaluations: {names}")

    def columns(name: str) -> dict[str, Tensor]:
        if (found := place.load(name)) is None:
            raise CheckpointError(f"{path / name} is missing; run the evaluation there again")
        return found

    try:
        if not (path / SUMMARY).exists():
            raise FileNotFoundError(f"it has no {SUMMARY}")
        summary, clean = place.load_summary(), columns(CLEAN)
        results = dict[str, AttackResult]()
        for label, about in summary["attacks"].items():
            known: dict[str, Any] = {key: about[key] for key in ("white_box", "steps", "attempts")}
            known |= columns(file_of("attack", label))
            results[label] = AttackResult(label, about["attack"], **known)
        flags = [Flag(**flag) for flag in summary["flags"]]
        right = (clean["ids"], clean["y"], clean["right"])
        classes = tuple(map(str, summary.get("class_names", ())))
        report = Report(summary["about"], *right, results, flags, place.times(), classes, path)
        _check(report, clean.get("logits"), summary)
    except DamagedError as error:
        raise DamagedError(f"{error}; run the evaluation there again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no finished evaluation ({type(error).__name__}: {error}); run it to the end, "
            "and name the folder that it wrote to"
        ) from error
    return report


def _check(report: Report, logits: Tensor | None, summary: Mapping[str, Any]) -> None:
    """Refuse files with impossible values, or that contradict each other; an older version kept no logits."""

    def refuse(name: str, what: str) -> DamagedError:
        return DamagedError(f"{report.folder}/{name} {what}: it is damaged or belongs to another evaluation")

    ids, y, right, n = report.ids, report.y, report.clean_right, report.y.shape
    if (
        [ids.dtype, y.dtype, right.dtype] != [torch.int64, torch.int64, torch.bool]
        or not (ids.shape == n == right.shape == (len(set(ids.tolist())),))
        or not (len(y) and int(y.min()) >= 0)
        or not (logits is None or torch.equal(logits.argmax(1) == y, right))
    ):
        raise refuse(CLEAN, "has impossible labels or ids, or verdicts that do not follow from its logits")
    tried = torch.ones_like(right)
    for label, result in report.results.items():
        if not result.possible(right, tried):
            raise refuse(file_of("attack", label), "has verdicts that are impossible or of other images")
        if report.about["standing"]:
            tried = tried & result.survived
    scores = {label: {"right": score.right, "n": score.n} for label, score in report.scores.items()}
    pairs = [(told, scores[label]) for label, told in summary["accuracy"].items()]
    pairs += [(summary["attacks"][label], result.plain()) for label, result in report.results.items()]
    pairs += [(part, {"n": report.n}) for part in (summary, report.about)]
    for told, found in pairs:  # older versions told less
        if any(told[key] != found[key] for key in {*told} & {*found}):
            raise refuse(SUMMARY, "has counts that do not follow from the verdicts")
