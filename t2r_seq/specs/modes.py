"""The modes a model is asked about: train, eval, infer."""

from __future__ import annotations

from typing import Final


class ModeKeys:
  """Names of the modes, as in Tensor2Robot's (and Estimator's) `ModeKeys`.

  `PREDICT` is the old name of `INFER`; both have the same value.
  """

  TRAIN: Final = "train"
  EVAL: Final = "eval"
  INFER: Final = "infer"
  PREDICT: Final = "infer"
  ALL: Final = ("train", "eval", "infer")
