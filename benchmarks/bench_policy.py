"""What a step of an exported policy costs beside the bare network.

Run it as `python -m benchmarks.bench_policy [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import measure
from t2r_seq import models, policies, preprocessors, specs, training

_SPEC = specs.ExtendedTensorSpec


@dataclasses.dataclass(frozen=True)
class PolicyWork:
  """What the policies are to do.

  Attributes:
    export_dir: the folder of the export's versions.
    image_size: height and width of the frames, three channels.
    num_frames: K, frames in a stack.
    num_steps: steps of the episode that a measured run acts through.
  """

  export_dir: str
  image_size: int = 64
  num_frames: int = 4
  num_steps: int = 300

  @property
  def offsets(self) -> tuple[int, ...]:
    """The steps of a stack."""
    return tuple(range(1 - self.num_frames, 1))


class SmallModel(models.RegressionModel):
  """Three convolutions over the frames as channels, and two dense layers."""

  def __init__(self, work: PolicyWork) -> None:
    """Creates the model for frames of that size."""
    super().__init__()
    self._work = work

  @property
  def default_preprocessor_cls(
    self,
  ) -> Callable[..., preprocessors.AbstractPreprocessor]:
    """Frames arrive as uint8."""
    return preprocessors.ImageToFloatPreprocessor

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the stack of frames."""
    size, offsets = self._work.image_size, self._work.offsets
    image = _SPEC(
      (len(offsets), size, size, 3),
      tf.float32,
      "image",
      data_format="jpeg",
      time_offsets=offsets,
    )
    return specs.TensorSpecStruct(image=image)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the target action."""
    return specs.TensorSpecStruct(target=_SPEC((2,), tf.float32, "target"))

  def create_network(self) -> tf.keras.Model:
    """Builds the layers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
      [
        layers.Conv2D(16, 5, 2, activation="relu"),
        layers.Conv2D(24, 3, 2, activation="relu"),
        layers.Conv2D(32, 3, 2, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(2),
      ]
    )

  def a_func(self, features: specs.SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """Stacks the frames as channels and predicts."""
    size, num_channels = self._work.image_size, 3 * self._work.num_frames
    frames = tf.transpose(features.image, [0, 2, 3, 1, 4])
    net = tf.reshape(frames, [-1, size, size, num_channels])
    return {"inference_output": self.network(net)}


Act = Callable[[np.ndarray, bool], np.ndarray]
"""Maps a frame [h, w, 3], and whether it is an episode's first, to an action [2]."""


def act_with_predictor(work: PolicyWork) -> Act:
  """Acts as our users do: `step`, with its checks; the predictor keeps the state."""
  predictor = policies.ExportedSavedModelPredictor(work.export_dir, timeout=0)
  predictor.restore()

  def act(frame: np.ndarray, is_first: bool) -> np.ndarray:
    return predictor.step({"image": frame[None]}, is_first)["inference_output"][0]

  return act


def act_with_step_signature(work: PolicyWork) -> Act:
  """Acts through the same signature without our Python."""
  signatures = _load(work).signatures
  step = signatures["step"]
  state = signatures["initial_state"](seeds=tf.constant([0]))

  def act(frame: np.ndarray, is_first: bool) -> np.ndarray:
    image, starts = tf.constant(frame[None]), tf.constant([is_first])
    outputs = step(image=image, is_first=starts, **state)
    state.update((name, outputs[name]) for name in state)
    return outputs["inference_output"].numpy()[0]

  return act


def act_with_numpy_stack(work: PolicyWork) -> Act:
  """Acts as one would by hand: the stack kept in numpy, the serving signature."""
  serve = _load(work).signatures["serving_default"]
  stack = np.zeros(
    (1, work.num_frames, work.image_size, work.image_size, 3), dtype=np.uint8
  )

  def act(frame: np.ndarray, is_first: bool) -> np.ndarray:
    if is_first:
      stack[:] = frame
    else:
      stack[:, :-1] = stack[:, 1:]
      stack[:, -1] = frame
    return serve(image=tf.constant(stack))["inference_output"].numpy()[0]

  return act


def make_frames(work: PolicyWork) -> np.ndarray:
  """Returns the frames of an episode, [T, h, w, 3] uint8."""
  rng = np.random.default_rng(5)
  shape = (work.num_steps, work.image_size, work.image_size, 3)
  return rng.integers(0, 256, shape, dtype=np.uint8)


def run_episode(make_act: Callable[[PolicyWork], Act], work: PolicyWork) -> measure.Run:
  """Makes the run that acts through the episode."""
  frames, act = make_frames(work), make_act(work)

  def act_through() -> int:
    for t, frame in enumerate(frames):
      act(frame, t == 0)
    return len(frames)

  return lambda: act_through


def bare_network(work: PolicyWork) -> measure.Run:
  """Makes the run that calls the serving signature on stacks that are tensors yet."""
  serve = _load(work).signatures["serving_default"]
  frames = make_frames(work)[: work.num_frames]
  stacks = [tf.constant(frames[list(order)][None]) for order in _orders(work)]

  def serve_all() -> int:
    for _, stack in zip(range(work.num_steps), itertools.cycle(stacks), strict=False):
      serve(image=stack)["inference_output"].numpy()
    return work.num_steps

  return lambda: serve_all


ACTS = {
  "`ExportedSavedModelPredictor.step`": act_with_predictor,
  "the `step` signature, called by hand": act_with_step_signature,
  "numpy stack and `serving_default`, by hand": act_with_numpy_stack,
}

CANDIDATES = [
  measure.Candidate(
    name,
    "ours" if make_act is not act_with_numpy_stack else "peer",
    functools.partial(run_episode, make_act),
  )
  for name, make_act in ACTS.items()
] + [measure.Candidate("`serving_default`, stacks prebuilt", "limit", bare_network)]


def export(work: PolicyWork) -> None:
  """Exports an untrained model, the same one every time."""
  tf.keras.utils.set_random_seed(1)
  model = SmallModel(work)
  model.build()
  training.export_saved_model(model, work.export_dir, global_step=0)


def make_work(folder: str, quick: bool = False) -> PolicyWork:
  """Returns 64x64 frames, or tiny ones, and few steps."""
  if quick:
    return PolicyWork(folder, image_size=32, num_frames=3, num_steps=6)
  return PolicyWork(folder)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  args = measure.parse_args(__doc__, argv)
  with tempfile.TemporaryDirectory() as folder:
    work = make_work(folder, args.quick)
    export(work)
    figures = measure.compare(CANDIDATES, work, args.rounds, isolate=not args.quick)
    table = measure.table(CANDIDATES, figures, "steps/s")
  print(table, flush=True)
  return table


def _load(work: PolicyWork) -> tf.Module:
  (version,) = training.exports.export_versions(work.export_dir)
  return tf.saved_model.load(f"{work.export_dir}/{version}")


def _orders(work: PolicyWork) -> list[tuple[int, ...]]:
  """Returns some stacks' worth of frame numbers, so that the inputs differ."""
  return list(itertools.islice(itertools.permutations(range(work.num_frames)), 8))


if __name__ == "__main__":
  main()
