"""Each error has the exit code that the command line promises, and a wrong name is answered with help."""

from __future__ import annotations

import signal
import sys

import pytest

from atlas import errors
from atlas.errors import AtlasError, Interrupted, ModelError, UsageError, choose, model_errors, unknown

EXIT_CODES = {
    "AtlasError": 1,
    "UsageError": 2,
    "DataError": 3,
    "CheckpointError": 4,
    "NumericError": 5,
    "DiskError": 6,
    "LockError": 7,
    "LostWorkerError": 8,
    "OutOfMemoryError": 10,
    "ModelError": 11,
}


def test_every_error_has_its_own_exit_code() -> None:
    kinds = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, AtlasError) and "exit_code" in vars(kind)
    }
    assert kinds == EXIT_CODES


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_has_the_shells_exit_code(number: signal.Signals, code: int) -> None:
    assert Interrupted(number).exit_code == code


def test_a_usage_error_is_a_value_error_for_users_of_the_library() -> None:
    with pytest.raises(ValueError, match="wrong"):
        raise UsageError("wrong")


def test_unknown_names_the_nearest_and_lists_the_choices_in_order() -> None:
    message = str(unknown("method", "atlsa", ["trades", "atlas", "adv"]))
    assert message == "unknown method 'atlsa' (did you mean 'atlas'?); choose from: adv, atlas, trades"


def test_unknown_is_silent_about_a_nearest_that_is_far() -> None:
    assert "did you mean" not in str(unknown("method", "zzzz", ["adv", "atlas"]))


def test_unknown_takes_an_iterator_and_a_name_of_any_type() -> None:
    assert "unknown width 3;" in str(unknown("width", 3, iter(["one", "two"])))


def test_choose() -> None:
    table = {"adv": 1, "atlas": 2}
    assert choose("method", "atlas", table) == 2
    with pytest.raises(UsageError, match=r"unknown method 'atlass'.*'atlas'"):
        choose("method", "atlass", table)


@pytest.mark.parametrize("code", [0, None, "done"])
def test_a_model_that_calls_sys_exit_is_an_error(code: object) -> None:
    with pytest.raises(ModelError, match=r"the model called sys\.exit\(.*\) in epoch 2 \(.*line \d+"):  # noqa: SIM117
        with model_errors("in epoch 2", ""):
            sys.exit(code)  # type: ignore[arg-type]


def test_ctrl_c_is_not_taken_for_the_model_s_own_exit() -> None:
    with pytest.raises(SystemExit, match="130"), model_errors("in epoch 2", ""):
        sys.exit(128 + signal.SIGINT)
