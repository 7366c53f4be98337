"""The modes a model is asked about: train, eval, infer."""

from __future__ import annotations

from typing import Final

from t2r_seq import errors


class ModeKeys:
  """Names of the modes, as in Tensor2Robot's (and Estimator's) `ModeKeys`.

  `PREDICT` is the old name of `INFER`; both have the same value.
  """

  TRAIN: Final = "train"
  EVAL: Final = "eval"
  INFER: Final = "infer"
  PREDICT: Final = "infer"
  ALL: Final = ("train", "eval", "infer")


def check_mode(operation: str, mode: str) -> None:
  """Raises SpecError, in the name of the operation, unless `mode` is a mode."""
  if mode not in ModeKeys.ALL:
    raise errors.SpecError(
      f"{operation}: mode: expected one of {errors.listing(ModeKeys.ALL)}, got "
      f"{mode!r}.{errors.nearest(str(mode), ModeKeys.ALL)}"
    )
