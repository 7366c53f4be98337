"""Compares a policy's values at each step of an episode with training's windows."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, policies, specs
from t2r_seq.lite import policy_io
from t2r_seq.policies.execution import CHUNK_SUFFIX
from t2r_seq.policies.lite_export import describe_tolerance, relative_errors
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.specs.structures import signature_key
from t2r_seq.verification.diagnoses import Case, equal_rows, find_causes
from t2r_seq.verification.subjects import Arrays, Subject
from t2r_seq.verification.training_side import Dataset, Episode
from t2r_seq.windows.cut import mask_paths

Observe = Callable[[dict[str, np.ndarray], bool], Mapping[str, Any]]
STAGES = (
  *("declaration", "observation", "window", "mask", "network input", "step", "output"),
  *("action", "command"),
)
WIDTH = 96
# Two graphs of one function may round differently: a division becomes a multiplication.
_MOST_ULPS = 4
# Draws of a random output, and the allowed distance of their means in standard errors.
_NUM_DRAWS, _MOST_ERRORS = 64, 6.0


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first difference of a path.

  Attributes:
    path: path of the feature or of the recorded actions, or name of the output.
    stage: stage where it appears, from `STAGES`.
    episode: number of the episode; 0 for a declaration.
    step: step of the episode; 0 for a declaration.
    expected: training's value, as text; for a declaration the policy's convention.
    got: the policy's value, as text; for a declaration the data's convention.
    num_steps: number of steps of the episode that differ; 0 for a declaration.
    causes: likely causes; empty if none fits.
  """

  path: str
  stage: str
  episode: int
  step: int
  expected: str
  got: str
  num_steps: int
  causes: tuple[str, ...] = ()

  def __str__(self) -> str:
    """Returns a paragraph."""
    if self.stage == "declaration":
      lines = [f"{self.path} (declaration): the policy has {self.expected}, the data "
               f"{self.got}."]  # fmt: skip
      return "\n".join(map(bullet, [*lines, *(f"{cause}." for cause in self.causes)]))
    where = f"episode {self.episode}, step {self.step}"
    lines = [
      f"{self.path} ({self.stage}): {where}: expected {self.expected}, got {self.got}. "
      f"{self.num_steps} steps of the episode differ."
    ]
    return "\n".join(
      bullet(line) for line in lines + [f"Likely cause: {c}." for c in self.causes]
    )


def bullet(text: str) -> str:
  """Returns a wrapped line of a report."""
  return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def seen_specs(
  feature_spec: TensorSpecStruct, step_spec: Mapping[str, Any]
) -> TensorSpecStruct:
  """Returns the specs of raw features that a step gets, and of their masks."""
  masks = mask_paths(feature_spec)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in feature_spec.items()
    if path in step_spec or masks.get(path) in step_spec
  )


def _stack(rows: list[Arrays]) -> Arrays:
  return {path: np.concatenate([row[path] for row in rows]) for path in rows[0]}


class _Trace:
  """Inputs and outputs of a policy at the steps of an episode."""

  def __init__(self, condition: Arrays) -> None:
    self.condition = condition
    self.first: Arrays = {}
    self.inspections: list[policy_io.Inspection] = []
    self.steps: list[Arrays] = []

  def part(self, name: str) -> Arrays:
    """Returns a part of the inspections by path, [T, ...]."""
    return _stack([getattr(each, name) for each in self.inspections])


class Comparison:
  """Replays episodes through a policy; keeps the first difference of each path."""

  def __init__(
    self, subject: Subject, reference: Any, dataset: Dataset, tolerance: float
  ) -> None:
    """Prepares the comparison; see `verify` for the arguments."""
    self.differences: dict[tuple[str, str], Difference] = {}
    self._subject = subject
    self._predict = subject.predict if reference is None else reference.predict
    is_export = isinstance(reference, policies.ExportedSavedModelPredictor)
    self._whose = "export" if reference is None or is_export else "checkpoint"
    self._execution = None if subject.record is None else subject.record.execution
    self._dataset = dataset
    self._tolerance = tolerance
    self._specs = subject.feature_spec
    self._before: Episode | None = None
    self._ulps = 0
    self._drawn: set[str] = set()
    self._sampled: dict[str, Arrays] | None = None
    self._paths: dict[str, set[str]] = {stage: set() for stage in STAGES}

  @property
  def _learns_more(self) -> bool:
    """Whether the network learns a task, and the policy does not."""
    is_of_tasks = any(path.startswith("condition/") for path in self._specs)
    return is_of_tasks and self._subject.one_task is None

  def first_differences(self) -> list[Difference]:
    """Returns the differences of the first differing stage, which cause later ones."""
    ordered = sorted(
      self.differences.values(),
      key=lambda each: (each.episode, STAGES.index(each.stage), each.step),
    )
    return [each for each in ordered if each.stage == ordered[0].stage]

  def describe_compared(self, has_model: bool) -> list[str]:
    """Describes what was compared."""
    listed = {
      stage: ", ".join(sorted(paths)) for stage, paths in self._paths.items() if paths
    }
    lines = [
      f"{noun} of {listed[stage]}, bit for bit"
      for stage, noun in (("window", "windows"), ("mask", "masks"))
      if stage in listed
    ]
    if "network input" in listed:
      exact = "bit for bit"
      if self._ulps:
        exact += (
          f", except for the rounding of the last place (at most {self._ulps} ulp)"
        )
      lines.append(f"network inputs {listed['network input']}, {exact}")
    elif has_model and not self._subject.returns_inputs and "output" in listed:
      lines.append("preprocessed values, only through the outputs")
    if "step" in listed:
      lines.append(f"step and inspect agree on {listed['step']}, bit for bit")
    if "output" in listed:
      tasks = ", each episode's task learned from the episode itself"
      lines.append(
        f"{listed['output']} with the {self._whose}'s network on training windows, "
        f"within {describe_tolerance(self._tolerance)}"
        f"{tasks if self._subject.one_task is not None else ''}"
      )
    if self._drawn:
      lines.append(
        f"the means of {_NUM_DRAWS} draws of {', '.join(sorted(self._drawn))}, at an "
        "episode's first step"
      )
    if "action" in listed:
      lines.append(f"the execution of the chunks of {listed['action']}")
    return lines

  def not_compared(self, has_model: bool) -> list[str]:
    """Describes what was not compared, and why."""
    lines = []
    if not has_model:
      lines.append(
        "preprocessed values, because the model's code is missing: give its gin files "
        "(--gin_configs); or, for a model built in Python, call verification.verify("
        "predictor, dataset, model)"
      )
    elif not self._subject.returns_inputs and self._predict is None:
      lines.append("preprocessed values: this form does not return them")
    if hidden := self._hidden_windows():
      lines.append(
        f"windows by time of {', '.join(sorted(hidden))}, except through the outputs"
      )
    if self._predict is None:
      lines.append("outputs, without a reference: name the export")
    elif self._learns_more:
      lines.append(
        "outputs, because the export's network learns a task, which a lite folder or "
        "server does not"
      )
    if self._subject.one_task is not None and self._subject.one_task.is_searched:
      lines.append("outputs, because the export searches, and data has no candidates")
    if self._drawn:
      lines.append(
        f"single draws of {', '.join(sorted(self._drawn))}, which differ in each call"
      )
    return lines

  def compare(self, episode: Episode, observe: Observe | None) -> None:
    """Replays an episode, and compares it."""
    replay = self._replay(episode, observe)
    if replay is None:
      return
    seen = replay.part("seen")
    self._compare_windows(episode, seen)
    if self._subject.returns_inputs:
      self._compare_inputs(episode, replay.part("inputs"), seen)
    predicted, stepped = replay.part("outputs"), _stack(replay.steps)
    expected: Arrays = {}
    if self._predict is not None:
      expected = self._predict_steps(episode, self._predict, stepped, replay.condition)
    self._compare_outputs(episode, predicted, stepped, expected)
    if self._execution is not None:
      # If `inspect` returns no outputs, the reference's take their place.
      if not predicted and len(episode.anchors) == episode.num_steps:
        predicted = expected
      self._compare_actions(episode, predicted, stepped, replay)
    self._accept_draws(episode, replay, stepped)
    self._before = episode

  def _replay(self, episode: Episode, observe: Observe | None) -> _Trace | None:
    """Steps through an episode; returns None if an observation is rejected."""
    subject, condition = self._subject, {}
    if subject.one_task is not None and len(episode.anchors):
      condition = subject.one_task.condition(episode.raw, episode.labels)
      subject.learn(condition)
    replay = _Trace(condition)
    for number in range(episode.num_steps):
      is_first = number == 0
      observed = {path: episode.at(path, number) for path in episode.observed}
      try:
        if observe is not None:
          observed = dict(observe(observed, is_first))
        packed = policy_io.pack(observed, subject.step_spec)
        outputs, inspection = subject.take(packed, is_first)
      except errors.SpecError as error:
        self._add_rejected(error, episode, number)
        return None
      replay.first = replay.first or packed
      replay.steps.append(outputs)
      replay.inspections.append(inspection)
    return replay

  def _add_rejected(
    self, error: errors.SpecError, episode: Episode, number: int
  ) -> None:
    spec, text = self._subject.step_spec, " ".join(str(error).split())
    path = next((path for path in spec if f"{path}:" in text), next(iter(spec)))
    if change := self._dataset.changed_size(path):
      text = (
        f"training's input {change}, and the export has no such stage: do the same on "
        "the robot, and name its code by --observe; or do it in the model's "
        "preprocessor"
      )
    want, got = errors.describe(spec[path]), "an observation that the policy rejects"
    cause = text.rstrip(".")
    self._add(
      Difference(path, "observation", episode.number, number, want, got, 1, (cause,))
    )

  def _add(self, difference: Difference) -> None:
    self.differences.setdefault((difference.stage, difference.path), difference)

  def _add_missing(
    self, episode: Episode, stage: str, path: str, ours: Any, theirs: Any, cause: str
  ) -> None:
    want, got = (
      "nothing" if rows is None else errors.describe(rows[0]) for rows in (ours, theirs)
    )
    steps = episode.num_steps
    self._add(Difference(path, stage, episode.number, 0, want, got, steps, (cause,)))

  def _compare_rows(
    self,
    episode: Episode,
    stage: str,
    path: str,
    case: Case,
    same: np.ndarray | None = None,
  ) -> None:
    """Compares rows bit for bit, or by the flags `same`; keeps the first difference."""
    self._paths[stage].add(path)
    expected, got = case.expected, case.got
    is_alike = expected.shape == got.shape and expected.dtype == got.dtype
    if not is_alike:
      same = np.zeros(len(case.anchors), bool)
    elif same is None:
      same = equal_rows(expected, got)
    if same.all():
      return
    row = int(np.flatnonzero(~same)[0])
    want_text, got_text = _describe_pair(expected[row], got[row])
    if is_alike and stage in ("output", "action") and expected.dtype.kind == "f":
      most = relative_errors(expected, got)[row].max()
      allowed = describe_tolerance(self._tolerance)
      got_text += f", off by {most:.2g} of its range where {allowed} is allowed"
    step, count = int(case.anchors[row]), int((~same).sum())
    causes = tuple(find_causes(case))
    self._add(
      Difference(path, stage, episode.number, step, want_text, got_text, count, causes)
    )

  def _compare_windows(self, episode: Episode, seen: Arrays) -> None:
    masks, returns_texts = mask_paths(self._specs), self._subject.returns_inputs
    hidden = self._hidden_windows()
    paths = {*episode.raw, *seen} - hidden if len(episode.anchors) else ()
    for path in sorted(paths):
      expected, got = episode.raw.get(path), seen.get(path)
      if expected is None or got is None:
        # A lite folder has vectors for texts; a search has no action to compare.
        is_text = expected is not None and expected.dtype == object
        is_searched = _is_action(path) and not any(map(_is_action, seen))
        if not is_searched and (returns_texts or not is_text):
          cause = "the exported policy does not get it"
          if expected is None:
            cause = "training has no such feature"
          self._add_missing(episode, "window", path, expected, got, cause)
        continue
      got = got[episode.anchors]
      if expected.dtype == object and got.dtype != object:
        continue  # A lite folder has vectors for texts.
      spec = self._subject.step_spec.get(path)
      if spec is not None:  # A lite folder has float32 for float64, for example.
        expected = expected.astype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
      stage = "mask" if path in masks else "window"
      case = self._case(episode, path, expected, got, episode.raw)
      self._compare_rows(episode, stage, path, case)

  def _hidden_windows(self) -> set[str]:
    """Returns windows by time and their masks, if the policy does not return them."""
    masks = mask_paths(self._specs)
    return {
      path
      for path in ([] if self._subject.returns_inputs else self._specs)
      if isinstance(self._specs[masks.get(path, path)].time_offsets, specs.Seconds)
    }

  def _case(
    self,
    episode: Episode,
    path: str,
    expected: np.ndarray,
    got: np.ndarray,
    others: Arrays,
    raw: np.ndarray | None = None,
  ) -> Case:
    spec = self._dataset.trained_spec.get(path)
    offsets = getattr(spec, "time_offsets", None)
    is_stack = spec is not None and spec.is_stacked
    if (spec is not None and spec.is_sequence) or offsets in (None, "last"):
      offsets = 0
    if isinstance(offsets, specs.Seconds):
      period = self._dataset.clock
      exact = offsets.steps(period) if isinstance(period, float) else None
      offsets = () if exact is None else tuple(exact.ravel().tolist())
    frames = before = None
    if raw is None:
      if path in episode.observed and path not in episode.context:
        frames = episode.observed[path]
      if self._before is not None:
        before = self._before.observed.get(path)
      if self._dataset.replay is not None:  # A step has any number of values.
        frames = before = None
    return Case(
      expected,
      got,
      episode.anchors,
      is_stack,
      offsets if isinstance(offsets, tuple) else (offsets,),
      frames,
      before,
      raw,
      {other: value for other, value in others.items() if other != path},
    )

  def _compare_inputs(self, episode: Episode, inputs: Arrays, seen: Arrays) -> None:
    is_searched = not any(map(_is_action, seen))
    for path, expected in episode.inputs.items():
      key = signature_key(path)
      if is_searched and _is_action(path):
        continue
      if key not in inputs:
        self._paths["network input"].add(path)
        cause = "the exported network does not get it"
        self._add_missing(episode, "network input", path, expected, None, cause)
        continue
      got = inputs[key][episode.anchors]
      if expected.dtype.name == "bfloat16":  # A server sends it as float32.
        got = got.astype(expected.dtype)
      same = None
      if expected.shape == got.shape and expected.dtype == got.dtype:
        same, ulps = _rounded_alike(expected, got)
        self._ulps = max(self._ulps, ulps)
      raw = episode.raw.get(path)
      case = self._case(episode, path, expected, got, episode.inputs, raw)
      self._compare_rows(episode, "network input", path, case, same)

  def _compare_outputs(
    self, episode: Episode, predicted: Arrays, stepped: Arrays, expected: Arrays
  ) -> None:
    anchors, steps = episode.anchors, np.arange(episode.num_steps)
    for name in expected.keys() & predicted.keys():
      case = Case(expected[name], predicted[name][anchors], anchors)
      same = None
      if case.expected.shape == case.got.shape and case.expected.dtype.kind == "f":
        same = self._close_rows(case.got, case.expected)
      self._compare_rows(episode, "output", name, case, same)
    for name in predicted.keys() & stepped.keys() if self._execution is None else ():
      if stepped[name].shape == predicted[name].shape:
        case = Case(predicted[name], stepped[name], steps)
        self._compare_rows(episode, "step", name, case)

  def _compare_actions(
    self, episode: Episode, predicted: Arrays, stepped: Arrays, replay: _Trace
  ) -> None:
    """Compares actions with the execution of the network's chunks."""
    execution = self._execution
    assert execution is not None
    for name in execution.outputs:
      if name not in predicted:
        continue
      got, chunks = stepped[name], predicted[name]
      expected = _execute(chunks, execution).astype(got.dtype)
      same = self._close_rows(got, expected)
      chunk_name = name + CHUNK_SUFFIX
      if (
        not same.all()
        and chunk_name in stepped
        and _varies(self._draws(episode, replay, stepped)["step"][chunk_name])
      ):
        chunks = stepped[chunk_name]  # Random chunks differ between step and inspect.
        expected = _execute(chunks, execution).astype(got.dtype)
        same = self._close_rows(got, expected)
      case = Case(expected, got, np.arange(episode.num_steps))
      self._compare_rows(episode, "action", name, case, same)
      difference = self.differences.get(("action", name))
      if difference is not None and not difference.causes:
        cause = _execution_cause(chunks, got, execution)
        self.differences["action", name] = dataclasses.replace(
          difference, causes=(cause,)
        )

  def _accept_draws(self, episode: Episode, replay: _Trace, stepped: Arrays) -> None:
    """Removes differences of random outputs if both sides' samples agree."""
    for stage, name in [*self.differences]:
      if stage not in ("output", "step"):
        continue
      samples = self._draws(episode, replay, stepped)
      sides = ["predicted", "reference" if stage == "output" else "step"]
      drawn = [samples[side][name] for side in sides if name in samples[side]]
      # If the first window starts later, it differs from the episode's first step.
      is_same = stage == "step" or not episode.anchors[0]
      is_drawn = len(drawn) > 1 and all(map(_varies, drawn))
      if is_drawn and all(_are_alike(drawn[0], x, is_same) for x in drawn[1:]):
        del self.differences[stage, name]
        self._drawn.add(name)

  def _draws(
    self, episode: Episode, replay: _Trace, stepped: Arrays
  ) -> dict[str, Arrays]:
    """Returns repeated outputs for an episode's first step, [draws, ...]."""
    if self._sampled is None:
      steps = [self._subject.take(replay.first, True) for _ in range(_NUM_DRAWS)]
      self._sampled = {
        "step": _stack([outputs for outputs, _ in steps]),
        "predicted": _stack([inspection.outputs for _, inspection in steps]),
        "reference": {},
      }
      if self._predict is not None and len(episode.anchors):
        args = (episode, self._predict, stepped, replay.condition, 1)
        rows = [self._predict_steps(*args) for _ in range(_NUM_DRAWS)]
        # A model of sequences predicts all steps at once.
        rows = [{name: value[:1] for name, value in row.items()} for row in rows]
        self._sampled["reference"] = _stack(rows)
    return self._sampled

  def _close_rows(self, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns which rows are equal within the tolerance, bool [n]."""
    # A NaN on both sides counts as equal: `FitCheck` warns of it.
    error = relative_errors(expected, got).reshape([len(got), -1])
    return np.asarray((error <= self._tolerance).all(axis=1))

  def _predict_steps(
    self,
    episode: Episode,
    predict: Callable[..., Arrays],
    stepped: Arrays,
    condition: Arrays,
    limit: int | None = None,
  ) -> Arrays:
    """Returns the network's outputs for training's windows, or for the first ones."""
    one_task, spec, count = self._subject.one_task, self._specs, len(episode.anchors)
    if not count or self._learns_more:
      return {}
    # In batches of one, as the policy: draws may depend on the place in a batch.
    rows = range(count)[:limit]
    if one_task is not None:
      at = [{p: v[i : i + 1] for p, v in episode.raw.items()} for i in rows]
      return _stack([one_task.predict(predict, condition, row) for row in at])
    # A critic that searches gets the action that it found, not the data's.
    paths = seen_specs(spec, self._subject.step_spec)
    features = {path: value for path, value in episode.raw.items() if path in paths}
    sequences = {path for path, leaf in spec.items() if leaf.is_sequence}
    if sequences:
      if count != episode.num_steps:
        return {}
      features = {
        path: value[np.newaxis] if path in sequences else value[:1]
        for path, value in features.items()
      }
      return {name: value[0] for name, value in predict(features).items()}
    missing = [path for path in spec if path not in features]
    for path in missing:
      key = signature_key(path)
      name = key if key in stepped else "action"
      if name not in stepped:
        return {}
      action = stepped[name][episode.anchors][:, np.newaxis]
      repeated = np.broadcast_to(action, [count, *spec[path].shape.as_list()])
      features[path] = np.ascontiguousarray(repeated)
    outputs = _stack([predict({p: features[p][i : i + 1] for p in spec}) for i in rows])
    if missing:  # All candidates of a search are the action that was found.
      outputs = {name: value[:, 0] for name, value in outputs.items()}
    return outputs


def _is_action(path: str) -> bool:
  """Whether the path is the action that a critic's search finds."""
  return path == "action" or path.startswith("action/")


def _rounded_alike(expected: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, int]:
  """Returns which rows are equal up to the last place, and by how many ulps."""
  same = equal_rows(expected, got)
  if same.all() or expected.dtype not in (np.float32, np.float64):
    return same, 0
  # After a cancellation the rounding error is an ulp of the larger terms.
  largest = np.maximum(np.abs(expected), np.abs(got)).max(initial=0.0)
  with np.errstate(invalid="ignore"):
    ulps = np.abs(expected - got) / np.spacing(largest.astype(expected.dtype))
  rows = np.nan_to_num(ulps, nan=np.inf).reshape([len(ulps), -1]).max(1, initial=0.0)
  same = same | (rows <= _MOST_ULPS)
  return same, int(np.ceil(rows[same].max(initial=0.0)))


def _execute(chunks: np.ndarray, execution: policies.ChunkExecution) -> np.ndarray:
  """Returns the actions, [T, ...], that execution of chunks, [T, n, ...], gives."""
  length, actions = chunks.shape[1], []
  for step in range(len(chunks)):
    used = [s for s in range(0, step + 1, execution.num_executed) if step - s < length]
    if execution.ensemble_decay is None:
      actions.append(chunks[used[-1], step - used[-1]])
      continue
    # The oldest chunk that covers this step has exponent 0.
    exponents = -execution.ensemble_decay * np.arange(len(used))
    weights = np.exp(exponents - exponents.max())
    plans = np.stack([chunks[s, step - s] for s in used]).astype(np.float64)
    actions.append(np.tensordot(weights / weights.sum(), plans, 1))
  return np.stack(actions)


def _execution_cause(
  chunks: np.ndarray, got: np.ndarray, execution: policies.ChunkExecution
) -> str:
  """Describes a wrong execution that gives the policy's actions, if one does."""
  length = chunks.shape[1]
  for late in range(1, min(length, 4)):
    moved = np.concatenate([chunks[:, late:], np.repeat(chunks[:, -1:], late, 1)], 1)
    if np.allclose(_execute(moved, execution), got, 1e-4, 1e-5):
      return f"each chunk is executed from its action {late + 1} on, not from the first"
  for num_executed in range(1, length + 1):
    for decay in {None, 0.0, 0.01, execution.ensemble_decay}:
      other = policies.ChunkExecution(num_executed, decay, execution.outputs)
      if np.allclose(_execute(chunks, other), got, 1e-4, 1e-5):
        return (
          f"chunks are executed with num_executed={num_executed}, ensemble_decay="
          f"{decay} in place of {execution.num_executed}, {execution.ensemble_decay}"
        )
  return "chunks are not executed as the export declares"


def _varies(draws: np.ndarray) -> bool:
  """Whether finite numbers, [draws, ...], differ from draw to draw."""
  is_number = draws.dtype.kind in "fiu" and bool(np.isfinite(draws).all())
  return is_number and bool((draws != draws[0]).any())


def _are_alike(one: np.ndarray, other: np.ndarray, is_same: bool) -> bool:
  """Whether draws, [draws, ...], of two sides may be of one distribution.

  Args:
    one: value of the first side.
    other: value of the other side.
    is_same: whether both sides had the same input.
  """
  one, other = (x.reshape([len(x), -1]).astype(np.float64) for x in (one, other))
  a, b = one - one.mean(0), other - other.mean(0)
  together = (a * b).sum() / np.sqrt(np.square(a).sum() * np.square(b).sum())
  if together > 0.5:  # The same random numbers lead to different outputs.
    return False
  error = np.sqrt((one.var(0) + other.var(0)) / len(one))
  is_near = np.abs(one.mean(0) - other.mean(0)) <= _MOST_ERRORS * error + 1e-6
  return not is_same or bool(is_near.all())


def _describe_pair(expected: np.ndarray, got: np.ndarray) -> tuple[str, str]:
  if expected.shape != got.shape or expected.dtype != got.dtype:
    return errors.describe(expected), errors.describe(got)
  if expected.size <= 8:
    return _text(expected), _text(got)
  different = np.asarray(expected != got)
  if not different.any():
    return _text(expected.ravel()[:8]), _text(got.ravel()[:8])
  place = tuple(int(i) for i in np.argwhere(different)[0])
  return f"{_text(expected[place])} at {[*place]}", _text(got[place])


def _text(value: np.ndarray) -> str:
  text = np.array2string(np.asarray(value), precision=6, separator=", ")
  return text.replace("\n", "")
