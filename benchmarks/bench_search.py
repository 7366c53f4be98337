"""What the search for an action costs: inside of an exported critic, and around it.

Run it as `python -m benchmarks.bench_search [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import measure
from t2r_seq import models, policies, preprocessors, specs, training

_SPEC = specs.ExtendedTensorSpec
_ACTION_SIZE = 4
_NUM_ELITES = 10


@dataclasses.dataclass(frozen=True)
class SearchWork:
  """What is searched for.

  Attributes:
    root: a folder with the exports 'inside', 'once' and 'each'.
    image_size: height and width of the state's frame, three channels.
    num_iterations: rounds of a search.
    num_samples: actions drawn in each.
    num_steps: actions that a measured run chooses.
  """

  root: str
  image_size: int = 32
  num_iterations: int = 3
  num_samples: int = 64
  num_steps: int = 30


class ImageCritic(models.CriticModel):
  """Three convolutions over the frame, and two dense layers over it and the action."""

  def __init__(self, image_size: int, **kwargs: object) -> None:
    """Creates the model for frames of that size."""
    super().__init__(**kwargs)
    self._image_size = image_size

  @property
  def default_preprocessor_cls(
    self,
  ) -> Callable[..., preprocessors.AbstractPreprocessor]:
    """Frames arrive as uint8."""
    return preprocessors.ImageToFloatPreprocessor

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns the frame."""
    shape = (self._image_size, self._image_size, 3)
    return specs.TensorSpecStruct(
      image=_SPEC(shape, tf.float32, "image", data_format="jpeg")
    )

  def get_action_specification(self) -> specs.TensorSpecStruct:
    """Returns the action."""
    return specs.TensorSpecStruct(pose=_SPEC((_ACTION_SIZE,), tf.float32, "pose"))

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the reward."""
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32, "reward"))

  def create_network(self) -> dict[str, tf.keras.Model]:
    """Builds the layers."""
    layers = tf.keras.layers
    state = [layers.Conv2D(size, 3, 2, activation="relu") for size in (16, 24, 32)]
    both = [layers.Dense(64, activation="relu"), layers.Dense(1)]
    return {
      "state": tf.keras.Sequential([*state, layers.Flatten()]),
      "both": tf.keras.Sequential(both),
    }

  def state_func(self, state: specs.SpecStructure, mode: str) -> tf.Tensor:
    """Encodes the frame."""
    return self.network["state"](state.image)

  def q_func(
    self, state: tf.Tensor, action: specs.SpecStructure, mode: str
  ) -> dict[str, tf.Tensor]:
    """Values an action."""
    joined = tf.concat([state, action.pose], axis=-1)
    return {"q_predicted": self.network["both"](joined)[:, 0]}


def make_frames(work: SearchWork) -> np.ndarray:
  """Returns the frames that actions are chosen at, [T, h, w, 3] uint8."""
  shape = (work.num_steps, work.image_size, work.image_size, 3)
  return np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)


def search_inside(work: SearchWork) -> measure.Run:
  """Makes the run that calls `step` once for an action."""
  predictor = policies.ExportedSavedModelPredictor(f"{work.root}/inside", timeout=0)
  predictor.restore()
  return _run(work, lambda frame: predictor.step({"state/image": frame[np.newaxis]}))


def search_around(kind: str, work: SearchWork) -> measure.Run:
  """Makes the run that calls `predict` once an iteration.

  Args:
    kind: 'once' for a critic of 64 candidates for one state, 'each' for one that gets
      the state with each candidate.
    work: what is searched for.
  """
  predictor = policies.ExportedSavedModelPredictor(f"{work.root}/{kind}", timeout=0)
  predictor.restore()
  policy = policies.CEMPolicy(
    action_size=_ACTION_SIZE,
    cem_iters=work.num_iterations,
    cem_samples=work.num_samples,
    num_elites=_NUM_ELITES,
    predictor=predictor,
    seed=0,
  )
  return _run(work, lambda frame: policy.SelectAction({"state/image": frame}))


def _run(work: SearchWork, act: Callable[[np.ndarray], object]) -> measure.Run:
  frames = make_frames(work)

  def act_through() -> int:
    for frame in frames:
      act(frame)
    return len(frames)

  return lambda: act_through


CANDIDATES = [
  measure.Candidate("`step` of a critic with a `search`", "ours", search_inside),
  measure.Candidate(
    "`CEMPolicy`, the state sent once an iteration",
    "ours",
    functools.partial(search_around, "once"),
  ),
  measure.Candidate(
    "`CEMPolicy`, the state sent with each candidate",
    "peer",
    functools.partial(search_around, "each"),
  ),
]


def make_work(folder: str, quick: bool = False) -> SearchWork:
  """Exports the same untrained critic in three forms; returns what is to be done."""
  work = SearchWork(folder)
  if quick:
    work = SearchWork(folder, 24, 2, 12, 2)
  search = policies.CrossEntropySearch(
    work.num_iterations, work.num_samples, _NUM_ELITES
  )
  for name, options in {
    "inside": {"search": search},
    "once": {"action_batch_size": work.num_samples},
    "each": {},
  }.items():
    tf.keras.utils.set_random_seed(1)
    model = ImageCritic(work.image_size, **options)
    model.build()
    training.export_saved_model(model, f"{folder}/{name}", global_step=0)
  return work


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  args = measure.parse_args(__doc__, argv)
  with tempfile.TemporaryDirectory() as folder:
    work = make_work(folder, args.quick)
    figures = measure.compare(CANDIDATES, work, args.rounds, isolate=not args.quick)
    table = measure.table(CANDIDATES, figures, "actions/s")
  print(table, flush=True)
  return table


if __name__ == "__main__":
  main()
