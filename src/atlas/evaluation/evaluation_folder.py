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
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from atlas.checkpoint import digest, load_tensors, save_tensors
from atlas.config import differences, fingerprint
from atlas.data.readers import add_npz_note, npz_note, read_npz
from atlas.errors import CheckpointError, DamagedError, DataError, UsageError
from atlas.evaluation.flags import Flag
from atlas.evaluation.results import COLUMNS, AttackResult, Report, spent
from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas.files import require_empty_dir, write_atomic

T = TypeVar("T")
CONFIG, SUMMARY, TIMING = "config.json", "summary.json", "timing.jsonl"
SAME = 1e-3
"""Logits of one model may differ by this share: other batches and other machines round otherwise."""
TURNED = 0.1
"""The same for its gradients, all together."""


class EvaluationFolder:
    """Paths and files of one evaluation.

    `code` is what the model at hand runs of the user's own code, by `atlas.models.code.user_code`.
    """

    def __init__(self, path: Path, code: Mapping[str, str] | None = None) -> None:
        self.path, self.code = path, dict(code or {})
        self.say: Callable[[str], None] = lambda text: None
        """Told which files were damaged and are made again."""

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
        known = self.kept_columns("clean")
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

    def check_surrogates(self, label: str, predict: Callable[[], Tensor]) -> None:
        """Refuse an attack whose surrogates answer the clean images differently from those of the first time.

        `predict` gives their answers, [N, ...]. Random surrogates are not compared.
        """
        name, answers = f"surrogates-{slug(label)}", predict()
        known = (self.kept_columns(name) or {}).get("logits")
        if known is None:
            self.save_columns(name, {"logits": answers})
        elif not alike(known, answers) and alike(answers, predict()):
            raise UsageError(
                f"{self.path} holds an evaluation with other surrogates: those of {label} answered the clean "
                "images differently; choose another folder"
            )

    def check_gradients(self, gradients: Tensor) -> None:
        """Those of some clean images, [K, ...]: a model that answers as before may have others by now."""
        known = (self.kept_columns("gradients") or {}).get("gradients")
        if known is None or known.shape != gradients.shape:
            self.save_columns("gradients", {"gradients": gradients})
        elif far_apart(known, gradients):
            raise UsageError(
                f"{self.path} holds the evaluation of another model: its gradients were others; "
                "choose another folder"
            )

    def holds(self, label: str, *, images: bool) -> bool:
        """Whether the attack is over, and its images are there if they are needed."""
        done = self.kept_columns(f"attack-{slug(label)}") is not None
        return done and (not images or self._kept(self._images(label), self.load_images, label) is not None)

    def save_columns(self, name: str, columns: Mapping[str, Tensor]) -> None:
        buffer = io.BytesIO()
        # NumPy knows no bfloat16.
        whole = {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in columns.items()}
        arrays: dict[str, Any] = {key: value.numpy() for key, value in whole.items()}
        np.savez(buffer, **arrays)
        mark = self._mark(name)
        seal = json.dumps(mark | {"sha256": digest(whole, json.dumps(mark))})
        write_atomic(self.path / f"{name}.npz", add_npz_note(buffer.getvalue(), seal))

    def load_columns(self, name: str) -> dict[str, Tensor] | None:
        """The columns of this name, verified; None where there is no such file."""
        path = self.path / f"{name}.npz"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read now: {error.strerror}") from error
        try:
            note = npz_note(path, content)
            arrays = read_npz(path, content=content)
            columns = {k: torch.from_numpy(np.require(v, requirements="W")) for k, v in arrays.items()}
            mark = dict(json.loads(note)) if note else {}
        except (DataError, TypeError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path} is damaged: {error}") from error
        expected = mark.pop("sha256", None)
        if expected != (digest(columns, json.dumps(mark)) if mark else None):
            raise DamagedError(f"{path} is damaged: its content does not match its checksum")
        self._check_mark(path, name, mark)
        return columns

    def kept_columns(self, name: str) -> dict[str, Tensor] | None:
        """As `load_columns`, for whoever can make them again: a damaged file is put aside, and said."""
        return self._kept(self.path / f"{name}.npz", self.load_columns, name)

    def _kept(self, path: Path, load: Callable[[str], T | None], name: str) -> T | None:
        try:
            return load(name)
        except DamagedError as error:
            self.put_aside(path, str(error))
            return None

    def put_aside(self, path: Path, why: str) -> None:
        """Rename a file that cannot be used, so that it is made again."""
        path.replace(path.with_suffix(".damaged"))
        self.say(f"{why}; it was renamed to {path.with_suffix('.damaged').name} and is made again")

    def _mark(self, part: str) -> dict[str, str]:
        """What ties a file to this evaluation."""
        return {"evaluation": fingerprint(self._config()[0]) if self.has_config else "", "part": part}

    def _check_mark(self, path: Path, part: str, mark: Mapping[str, Any]) -> None:
        if not mark and self.has_config and self._config()[2]:
            raise DamagedError(f"{path} has no checksum, unlike the rest of this evaluation")
        if mark and mark != self._mark(part):
            raise DamagedError(f"{path} belongs to another evaluation")

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).exists()

    def save_state(self, label: str, tensors: Mapping[str, Tensor], seconds: float) -> None:
        path = self._state(label)
        save_tensors(path, tensors, {"seconds": seconds, **self._mark(path.stem)})

    def load_state(self, label: str) -> tuple[dict[str, Tensor], float] | None:
        """The state of an attack under way, and its seconds; None where it is not there or damaged."""
        return self._kept(self._state(label), self._loaded_state, label)

    def _loaded_state(self, label: str) -> tuple[dict[str, Tensor], float] | None:
        found = self._tensors(self._state(label))
        if found is None:
            return None
        tensors, about = found
        try:
            return tensors, float(about["seconds"])
        except (KeyError, ValueError, TypeError) as error:
            raise DamagedError(f"{self._state(label)} does not say how long it took") from error

    def _tensors(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors of a file of this evaluation and the table beside them; None where it is not there."""
        if not path.exists():
            return None
        tensors, about = load_tensors(path)
        self._check_mark(path, path.stem, {k: v for k, v in about.items() if k in ("evaluation", "part")})
        return tensors, about

    def drop_state(self, label: str) -> None:
        self._state(label).unlink(missing_ok=True)

    def save_images(self, label: str, ids: Tensor, x_adv: Tensor) -> None:
        path = self._images(label)
        save_tensors(path, {"ids": ids, "x_adv": x_adv}, self._mark(path.stem))

    def load_images(self, label: str) -> tuple[Tensor, Tensor] | None:
        """The ids and the images that fool, where they were kept."""
        found = self._tensors(self._images(label))
        return None if found is None else (found[0]["ids"], found[0]["x_adv"])

    def note_time(self, label: str, seconds: float) -> None:
        with suppress(OSError), (self.path / TIMING).open("a") as file:  # nothing depends on it
            file.write(json.dumps({"attack": label, "seconds": round(seconds, 3)}) + "\n")

    def times(self) -> dict[str, float]:
        """The seconds of each attack that is over; whatever cannot be read is skipped."""
        found = dict[str, float]()
        try:
            lines = (self.path / TIMING).read_bytes().splitlines()
        except OSError:
            return found
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
                raise DamagedError(f"{path} has no checksum, unlike the rest of this evaluation")
            if found := differences(known, summary["about"]):
                raise DamagedError(f"{path} does not match {CONFIG}: {'; '.join(found)}")
        return summary

    def _images(self, label: str) -> Path:
        return self.path / f"images-{slug(label)}.safetensors"

    def _state(self, label: str) -> Path:
        return self.path / f"state-{slug(label)}.safetensors"


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


def load_report(path: Path) -> Report:
    """The report of a finished evaluation.

    Every file is verified: its checksum (older versions wrote none), that it belongs to this evaluation, and
    that its values are possible and agree with those of the other files.
    """
    place = EvaluationFolder(path)
    if not (path / SUMMARY).exists() and (inside := sorted(path.glob(f"evaluations/*/{SUMMARY}"))):
        names = ", ".join(str(each.parent) for each in inside)
        raise CheckpointError(f"{path} is a run; name one of its evaluations: {names}")
    try:
        if not (path / SUMMARY).exists():
            raise FileNotFoundError(f"it has no {SUMMARY}")
        summary = place.load_summary()
        clean = _columns(place, "clean")
        results = {
            label: _result(label, about, _columns(place, f"attack-{slug(label)}"))
            for label, about in summary["attacks"].items()
        }
        flags = [Flag(**flag) for flag in summary["flags"]]
        columns = (clean["ids"], clean["y"], clean["right"])
        called = tuple(map(str, summary.get("class_names", ())))
        report = Report(summary["about"], *columns, results, flags, place.times(), called, path)
        _check_clean(path / "clean.npz", clean)
        _check_attacks(path, report)
        _check_summary(path / SUMMARY, summary, report)
    except DamagedError as error:
        raise DamagedError(f"{error}; run the evaluation there again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no finished evaluation ({type(error).__name__}: {error}); run it to the end, "
            "and name the folder that it wrote to"
        ) from error
    return report


def _columns(place: EvaluationFolder, name: str) -> dict[str, Tensor]:
    columns = place.load_columns(name)
    if columns is None:
        raise CheckpointError(f"{place.path / name}.npz is missing; run the evaluation there again")
    return columns


def _result(label: str, about: dict[str, Any], columns: dict[str, Tensor]) -> AttackResult:
    values = (columns[name] for name in COLUMNS)
    return AttackResult(
        label, about["attack"], about["white_box"], about["steps"], about["attempts"], *values
    )


def _check_clean(path: Path, clean: dict[str, Tensor]) -> None:
    ids, y, right = clean["ids"], clean["y"], clean["right"]
    kinds = {"ids": torch.int64, "y": torch.int64, "right": torch.bool}
    if any(clean[name].dtype != kind or clean[name].shape != (len(y),) for name, kind in kinds.items()):
        raise _impossible(path, "has columns of other types or lengths than those of clean images")
    if not len(y) or int(y.min()) < 0 or len(set(ids.tolist())) < len(ids):
        raise _impossible(path, "has no images, negative labels, or an image twice")
    logits = clean.get("logits")  # which an older version did not keep
    if logits is not None and not torch.equal(logits.argmax(1) == y, right):
        raise _impossible(path, "has verdicts that do not follow from its logits")


def _check_attacks(path: Path, report: Report) -> None:
    tried = torch.ones_like(report.clean_right)
    for label, result in report.results.items():
        if problem := result.problem(report.clean_right, tried):
            raise _impossible(path / f"attack-{slug(label)}.npz", problem)
        if report.about["standing"]:
            tried = tried & result.survived


def _check_summary(path: Path, summary: dict[str, Any], report: Report) -> None:
    """Its counts have to follow from the verdicts."""
    counts = {label: int(report.right_under(label).sum()) for label in report.results}
    counts |= {ON_CLEAN: int(report.clean_right.sum()), WORST_CASE: int(report.robust.sum())}
    for label, score in summary["accuracy"].items():
        told = {key: score[key] for key in ("right", "n") if key in score}
        if told and told != {"right": counts[label], "n": report.n}:
            verdicts = f"{counts[label]} of {report.n}"
            raise _impossible(path, f"has {told} for {label}, and the verdicts have {verdicts}")
    for label, result in report.results.items():
        found, told = spent(result), summary["attacks"][label]
        if any(told[key] != found[key] for key in {*told} & {*found}):
            raise _impossible(path, f"has counts for {label} that do not follow from the verdicts")
    if summary["n"] != report.n or report.about.get("n", report.n) != report.n:
        raise _impossible(path, f"has n = {summary['n']}, and there are verdicts on {report.n} images")


def _impossible(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path} {what}: it is damaged or belongs to another evaluation")
