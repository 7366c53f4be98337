"""What the studies share: arguments, runs by gin, exports, films, tables."""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import actors, imports, policies, training

# Student's t: 97.5 % lie below, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def parser(doc: str, out: str) -> argparse.ArgumentParser:
  """Returns a parser of what all studies are asked for.

  Args:
    doc: of the study, whose first line describes it.
    out: the folder where none is given.
  Returns:
    A parser of `out`, `seeds` and `gin_bindings`; `start` is the time of now.
  """
  found = argparse.ArgumentParser(description=doc.splitlines()[0])
  found.set_defaults(start=time.monotonic())
  found.add_argument("--out", type=pathlib.Path, default=out, help="of what is written")
  found.add_argument("--seeds", type=int, default=1, help="trainings of each model")
  found.add_argument("--gin_bindings", nargs="*", default=[], help="of each training")
  return found


@contextlib.contextmanager
def configured(config: str, *bindings: str) -> Iterator[None]:
  """Configures one run from a gin file, from whatever folder; afterwards none is."""
  gin.clear_config()
  gin.parse_config_files_and_bindings([config], list(bindings))
  try:
    yield
  finally:
    gin.clear_config()


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
  """Says what begins, and how long it took."""
  start = time.monotonic()
  print(f"== {name}", flush=True)
  yield
  print(f"== {name}: {time.monotonic() - start:.0f} s", flush=True)


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a place to write to, whose content is moved to the path once all is there.

  What a run that was stopped has left there is removed first.
  """
  part = path.with_name(f"{path.name}.part")
  if part.is_dir():
    shutil.rmtree(part)
  part.unlink(missing_ok=True)
  yield part
  part.rename(path)


def collect(
  config: str,
  path: pathlib.Path,
  num_episodes: int,
  *bindings: str,
  seed: int = 0,
  to: str = "StoreSink.path",
) -> None:
  """Writes episodes, as a gin file says, unless they are there.

  Args:
    config: the gin file.
    path: of what is written.
    num_episodes: how many.
    *bindings: further ones.
    seed: of the collection.
    to: what is bound to the path.
  """
  if path.exists():
    return
  with stage(f"collect {path.stem}"), whole(path) as part:
    counted = (
      f"{to} = {str(part)!r}",
      f"collect_episodes.num_episodes = {num_episodes}",
      f"collect_episodes.seed = {seed}",
    )
    with configured(config, *counted, *bindings):
      actors.collect_episodes()


def run_dir(out: pathlib.Path, name: str, seed: int) -> str:
  """Returns the folder of a training."""
  return str(out / "runs" / f"{name}_{seed}")


@contextlib.contextmanager
def configured_run(
  config: str, model_dir: str, seed: int, *bindings: str, num_steps: int | None = None
) -> Iterator[None]:
  """Configures a training that exports its last weights, and seeds it.

  Args:
    config: the gin file.
    model_dir: of the training.
    seed: of weights and whatever else Keras and TensorFlow draw.
    *bindings: further ones, which outdo these.
    num_steps: of the training; None as the gin file says.
  """
  told = [] if num_steps is None else [f"NUM_TRAIN_STEPS = {num_steps}"]
  places = (
    f"train_eval_model.model_dir = {model_dir!r}",
    "train_eval_model.create_exporters_fn = @create_default_exporters",
    "create_default_exporters.exporter_fns = [@LatestExporter]",
  )
  with configured(config, *places, *told, *bindings):
    tf.keras.utils.set_random_seed(seed)
    yield


def train(
  config: str, model_dir: str, seed: int, *bindings: str, num_steps: int | None = None
) -> None:
  """Trains as a gin file says; see `configured_run`."""
  with (
    stage(f"{pathlib.Path(config).stem}: {pathlib.Path(model_dir).name}"),
    configured_run(config, model_dir, seed, *bindings, num_steps=num_steps),
  ):
    training.train_eval_model()


def load(model_dir: str, name: str = "latest") -> policies.ExportedSavedModelPredictor:
  """Returns a predictor of a training's exports of that name; nothing is loaded yet."""
  return policies.ExportedSavedModelPredictor(f"{model_dir}/export/{name}", timeout=0.0)


def evaluate(
  policy: Any, env: Any, num_episodes: int, seed: int
) -> actors.evaluation.Evaluation:
  """Acts in episodes, which are the same for all policies, and closes the environment.

  Args:
    policy: acts; is restored first.
    env: made for this.
    num_episodes: how many.
    seed: of the episodes.
  """
  with contextlib.closing(env):
    found = actors.evaluate_policies({"": policy}, env, num_episodes, (seed,))
  return found[""]


def film(
  policy: Any, env: Any, large: Any, seed: int
) -> tuple[list[np.ndarray], float]:
  """Acts in an episode.

  Args:
    policy: acts; it is reset.
    env: that it sees.
    large: the same environment, which renders frames of another size.
    seed: of the episode, and of what the policy draws.
  Returns:
    (frames, [h, w, 3] uint8, the first one before any action; the last reward).
  """
  policy.reset()
  policy.seed(seed)
  observation, _ = env.reset(seed=seed)
  large.reset(seed=seed)
  frames, is_over = [large.render()], False
  while not is_over:
    action, _ = policy.sample_action(observation)
    observation, reward, terminated, truncated, _ = env.step(action)
    large.step(action)
    frames.append(large.render())
    is_over = terminated or truncated
  return frames, reward


def film_strip(
  policy: Any, env: Any, large: Any, seed: int, num_frames: int = 6
) -> np.ndarray:
  """Acts in an episode; returns some of its frames in a row, [h, w, 3] uint8.

  Args:
    policy: acts; it is restored and reset.
    env: that it sees.
    large: the same environment, which renders frames of another size.
    seed: of the episode.
    num_frames: from the first to the last.
  """
  policy.restore()
  frames, _ = film(policy, env, large, seed)
  shown = np.linspace(0, len(frames) - 1, num_frames).astype(int)
  return np.concatenate([frames[i] for i in shown], axis=1)


def pyplot() -> Any:
  """Returns matplotlib's pyplot, which draws to files alone.

  Raises:
    ImportError: matplotlib is not there, and which extra has it.
  """
  try:
    import matplotlib
  except ImportError as error:
    raise imports.missing_extra("matplotlib", "demo") from error
  matplotlib.use("Agg")
  from matplotlib import pyplot as found

  return found


def mean_and_interval(values: Sequence[float], digits: int = 3) -> str:
  """Returns '0.123 ± 0.004': the mean of some seeds and half its 95 % interval.

  Args:
    values: a figure of each seed, up to ten; of one seed there is no interval.
    digits: after the point.
  """
  mean = float(np.mean(values))
  if len(values) < 2:
    return f"{mean:.{digits}f}"
  half = _T[len(values) - 2] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
  return f"{mean:.{digits}f} ± {half:.{digits}f}"


def table(
  columns: Sequence[str], rows: Iterable[Sequence[str]], num_labels: int = 1
) -> str:
  """Returns a table in Markdown.

  Args:
    columns: their names.
    rows: a cell for each column.
    num_labels: columns that are no numbers, the first ones.
  """
  rule = ["---"] * num_labels + ["---:"] * (len(columns) - num_labels)
  return "".join(f"| {' | '.join(row)} |\n" for row in (columns, rule, *rows))


def conclude(args: argparse.Namespace, text: str, is_good: bool, complaint: str) -> int:
  """Writes and prints what a study has found.

  Args:
    args: of `parser`.
    text: of `table.md`.
    is_good: whether it is what was to be found.
    complaint: the message if not.
  Returns:
    The exit status.
  """
  (args.out / "table.md").write_text(text, encoding="utf-8")
  print(f"\n{text}\nThe study took {time.monotonic() - args.start:.0f} s.")
  if not is_good:
    print(f"study: {complaint}", file=sys.stderr)
  return int(not is_good)
