"""Replays episodes through a policy, and compares all that it sees with training."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, policies, records, specs, statistics, windows
from t2r_seq.episodes import Episodes
from t2r_seq.lite import policy_io
from t2r_seq.policies.execution import CHUNK_SUFFIX
from t2r_seq.policies.lite_export import (
  TOLERANCE,
  describe_tolerance,
  relative_errors,
)
from t2r_seq.preprocessors.normalize import normalizing_stages
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.verification import fit
from t2r_seq.verification.diagnoses import Case, equal_rows, find_causes
from t2r_seq.verification.report import STAGES, Difference, VerificationReport
from t2r_seq.verification.subjects import Subject, subject_of
from t2r_seq.verification.training_side import Arrays, Dataset, Episode
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding, mask_paths

Observe = Callable[[dict[str, np.ndarray], bool], Mapping[str, Any]]
# Graphs that compute the same may round otherwise: what a constant is divided by may
# become a factor.
_MOST_ULPS = 4
# Of what is drawn, and by how many standard errors the means of two sides may differ.
_NUM_DRAWS, _MOST_ERRORS = 64, 6.0


def verify(
  predictor: Any,
  dataset: str | os.PathLike[str] | Episodes,
  model: Any = None,
  *,
  reference: Any = None,
  statistics_path: str | None = None,
  observe: Observe | None = None,
  num_episodes: int | None = None,
  tolerance: float = TOLERANCE,
  source: str | None = None,
  **options: Any,
) -> VerificationReport:
  """Proves that a policy sees what training saw, or finds the first difference.

  Episodes are replayed as a robot lives them, one observation at a time, through the
  policy's `step`. At each step its windows and masks, and the inputs of its network,
  are compared to the last bit with what training's input pipeline and preprocessor make
  of that anchor. They are read out of the export by its own `inspect`, which calls the
  function of the graph that a step calls.

  A lite folder tells its windows, and not what its network is given: its outputs are
  compared with those of training's windows. A server is asked what it sees.

  Args:
    predictor: has a model: an `ExportedSavedModelPredictor`, or `CheckpointPredictor`;
      a `lite.LitePolicy`; or a `serving.PolicyClient`.
    dataset: a path, or episodes that `open_episodes` returns with options, such as a
      split.
    model: the model as it is trained, for its preprocessor and its specs; None compares
      raw windows, and outputs, only.
    reference: has what the outputs should be: a `CheckpointPredictor` of the run, or a
      predictor of the export. None takes the export's own `predict`, and of a lite
      folder or a server compares no outputs.
    statistics_path: of the data that was trained on, as `t2r_seq stats` writes it; None
      takes those that the model normalises by, if it does.
    observe: what the robot's code does to an observation before the policy gets it;
      called with arrays by path, and whether an episode begins.
    num_episodes: the first ones of the dataset; None for all.
    tolerance: of outputs, in units of the range of each element in an episode; that of
      `policies.export_lite`.
    source: of a mixture that was trained on, whose data the dataset is like; None for
      any, where the input did the same to all of them.
    **options: of `open_episodes`, for a path: format, split, layout, ...
  Returns:
    The report.
  Raises:
    SpecError: the policy cannot be given these data, or the export is an older one.
  """
  subject = subject_of(predictor)
  record = subject.record
  padding: Padding = DEFAULT_PADDING
  if model is not None:
    padding = model.padding
  elif record is not None:
    padding = record.padding
  pads_front = windows.Cut(padding=padding).pads_front
  preprocessor = None if model is None else model.step_preprocessor
  stages = [] if record is None else record.stages_of(source)
  decodings = filter(None, map(records.ImageDecoding.from_stage, stages or []))
  data = Dataset(
    dataset,
    _seen_specs(subject.feature_spec, subject.step_spec),
    padding,
    preprocessor,
    None if subject.one_task is None else subject.one_task.label_spec,
    next(decodings, None),
    **options,
  )
  if statistics_path is None and preprocessor is not None:
    stage = next(normalizing_stages(preprocessor), None)
    statistics_path = None if stage is None else stage.statistics_path
  known = (
    None if statistics_path is None else statistics.load_statistics(statistics_path)
  )
  check = fit.FitCheck(data, known, record)
  comparison = _Comparison(subject, reference, data, tolerance)
  count, steps = 0, 0
  for episode in data.episodes(num_episodes):
    check.add(episode)
    lived = _live(subject, episode, observe, comparison.add, data.changed_size)
    if lived is not None:
      comparison.compare(episode, lived)
    count, steps = count + 1, steps + episode.num_steps
    if comparison.differences:
      break  # What follows differs for the same reason.
  warnings = check.warnings()
  if preprocessor is not None and (optional := _optional_paths(preprocessor)):
    warnings.append(
      f"training may see the optional features {errors.listing(optional)}, which the "
      "exported policy is never given"
    )
  rounded = subject.weights != "float32"
  if rounded and any(d.stage in ("output", "action") for d in comparison.ordered()):
    warnings.append(
      f"the weights are stored as {subject.weights}, which changes outputs: give the "
      "tolerance that you accept"
    )
  if not pads_front:
    warnings.append(
      "training has no windows of the first steps of an episode (padding 'drop'), "
      "where the policy acts, too, with the first step repeated"
    )
  return VerificationReport(
    policy=subject.name,
    dataset=data.path,
    num_episodes=count,
    num_steps=steps,
    compared=tuple(comparison.described(model is not None)),
    differences=tuple(comparison.ordered()),
    warnings=tuple(warnings),
    not_compared=tuple(comparison.left_out(model is not None)),
    not_exported=tuple(_not_exported(record, stages)),
  )


def _not_exported(
  record: policies.PolicyRecord | None, stages: list[dict[str, Any]] | None
) -> Iterator[str]:
  """Yields what training's input did that neither the export nor this has."""
  sources = {} if record is None else record.source_preprocessing or {}
  if stages is None:
    yield (
      "training's input did other things before the model's preprocessor to each "
      f"source: {policy_io.list_stages(sources)}. Name the source that the dataset is "
      "like: --source, or verify(..., source=...)"
    )
  elif missing := [s for s in stages if not records.ImageDecoding.from_stage(s)]:
    yield (
      "training's input applied, before the model's preprocessor, "
      f"{policy_io.list_stages({'': missing})}. The policy does not, and verify cannot "
      "compare it. Give it to the model, as preprocessor_cls, and train again; or have "
      "the robot do it, and undo it for actions"
    )


def _seen_specs(
  feature_spec: TensorSpecStruct, step_spec: Mapping[str, Any]
) -> TensorSpecStruct:
  """Returns the raw features that a step is given, and their masks."""
  masks = mask_paths(feature_spec)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in feature_spec.items()
    if path in step_spec or masks.get(path) in step_spec
  )


def _optional_paths(preprocessor: Any) -> list[str]:
  in_spec = preprocessor.get_in_feature_specification(specs.ModeKeys.EVAL)
  return [
    path
    for path, spec in specs.flatten_spec_structure(in_spec).items()
    if getattr(spec, "is_optional", False)
  ]


class _Life:
  """What a policy had at the steps of an episode."""

  def __init__(self) -> None:
    self.condition: Arrays = {}
    self.first: Arrays = {}
    self.seen: list[Arrays] = []
    self.inputs: list[Arrays] = []
    self.said: list[Arrays] = []
    self.stepped: list[Arrays] = []


def _stack(rows: list[Arrays]) -> Arrays:
  """Joins rows, [T, ...]."""
  return {path: np.concatenate([row[path] for row in rows]) for path in rows[0]}


def _live(
  subject: Subject,
  episode: Episode,
  observe: Observe | None,
  found: Callable[[Difference], None],
  changed_size: Callable[[str], str | None],
) -> _Life | None:
  """Steps through an episode; None where an observation is not taken."""
  life = _Life()
  if subject.one_task is not None and len(episode.anchors):
    life.condition = subject.one_task.condition(episode.raw, episode.labels)
    subject.learn(life.condition)
  for number in range(episode.num_steps):
    begins = number == 0
    observed = {path: episode.at(path, number) for path in episode.observed}
    try:
      if observe is not None:
        observed = dict(observe(observed, begins))
      packed = policy_io.pack(observed, subject.step_spec)
      step = subject.take(packed, begins)
    except errors.SpecError as error:
      found(_refused(error, episode, number, subject.step_spec, changed_size))
      return None
    life.first = life.first or packed
    life.stepped.append(step.outputs)
    life.seen.append(step.inspection.seen)
    life.inputs.append(step.inspection.inputs)
    life.said.append(step.inspection.said)
  return life


def _refused(
  error: errors.SpecError,
  episode: Episode,
  step: int,
  spec: Mapping[str, Any],
  changed_size: Callable[[str], str | None],
) -> Difference:
  text = " ".join(str(error).split())
  path = next((path for path in spec if f"{path}:" in text), next(iter(spec)))
  want = errors.describe(spec[path])
  if change := changed_size(path):
    text = (
      f"training's input {change}, and the export has no such stage: do the same on "
      "the robot, and name its code by --observe; or do it in the model's preprocessor"
    )
  return Difference(
    path, "observation", episode.number, step, want, "an observation that is refused",
    1, (text.rstrip("."),),
  )  # fmt: skip


class _Comparison:
  """Compares both sides, and keeps the first difference of each path."""

  def __init__(
    self,
    subject: Subject,
    reference: Any,
    dataset: Dataset,
    tolerance: float,
  ) -> None:
    self.differences: dict[tuple[str, str], Difference] = {}
    self._subject = subject
    self._predict = subject.predict if reference is None else reference.predict
    self._whose = "export" if reference is None else _whose(reference)
    self._record = subject.record
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

  def add(self, difference: Difference) -> None:
    """Keeps a difference, if it is the first of its path."""
    self.differences.setdefault((difference.stage, difference.path), difference)

  def ordered(self) -> list[Difference]:
    """Returns the differences; those that are the reason of others come first."""
    found = sorted(
      self.differences.values(),
      key=lambda each: (each.episode, STAGES.index(each.stage), each.step),
    )
    return [each for each in found if each.stage == found[0].stage]

  def described(self, has_model: bool) -> list[str]:
    """Says what was compared with what."""
    listed = {
      stage: ", ".join(sorted(paths)) for stage, paths in self._paths.items() if paths
    }
    said = []
    for stage, noun in (("window", "windows"), ("mask", "masks")):
      if stage in listed:
        said.append(f"{noun} of {listed[stage]}, bit for bit")
    if "network input" in listed:
      how = "bit for bit"
      if self._ulps:
        how += f", but for the rounding of the last place (at most {self._ulps} ulp)"
      said.append(f"what the network got of {listed['network input']}, {how}")
    elif has_model and not self._subject.tells_inputs and "output" in listed:
      said.append("preprocessed values, which this form does not tell, by the outputs")
    if "step" in listed:
      said.append(f"step and inspect: {listed['step']}, bit for bit")
    if "output" in listed:
      learned = self._subject.one_task is not None
      said.append(
        f"{listed['output']} with the {self._whose}'s network on training's windows, "
        f"to {describe_tolerance(self._tolerance)}"
        + (", each episode's task learned from the episode itself" if learned else "")
      )
    if self._drawn:
      said.append(
        f"the means of {_NUM_DRAWS} draws of {', '.join(sorted(self._drawn))}, at an "
        "episode's first step"
      )
    if "action" in listed:
      said.append(f"the execution of the chunks of {listed['action']}")
    return said

  def left_out(self, has_model: bool) -> list[str]:
    """Says what was not compared, and why."""
    said = []
    if not has_model:
      said.append(
        "preprocessed values, because the model's code is not there: name its gin "
        "files; or, of a model that is made in Python, call verification.verify("
        "predictor, dataset, model)"
      )
    elif not self._subject.tells_inputs and self._predict is None:
      said.append("preprocessed values, which this form does not tell")
    if self._predict is None:
      said.append("outputs, for want of what they should be: name the export")
    elif self._learns_more:
      said.append(
        "outputs, because the export's network learns a task, which this form does not"
      )
    if self._subject.one_task is not None and self._subject.one_task.is_searched:
      said.append("outputs, because the export searches, and data has no candidates")
    if self._drawn:
      said.append(
        f"single draws of {', '.join(sorted(self._drawn))}, of which each call gives "
        "others"
      )
    return said

  def compare(self, episode: Episode, life: _Life) -> None:
    """Compares an episode."""
    seen = _stack(life.seen)
    self._compare_paths(episode, seen)
    self._compare_windows(episode, seen)
    if self._subject.tells_inputs:
      self._compare_inputs(episode, _stack(life.inputs), seen)
    said, stepped = _stack(life.said), _stack(life.stepped)
    self._compare_outputs(episode, said, stepped, life)
    self._leave_draws(episode, life, stepped)
    self._before = episode

  def _note(
    self,
    episode: Episode,
    stage: str,
    path: str,
    expected: np.ndarray,
    got: np.ndarray,
    anchors: np.ndarray,
    same: np.ndarray | None = None,
    make_case: Callable[[], Case] | None = None,
  ) -> None:
    """Compares rows at anchors; keeps the first difference."""
    self._paths[stage].add(path)
    is_alike = expected.shape == got.shape and expected.dtype == got.dtype
    if same is None or not is_alike:
      same = equal_rows(expected, got) if is_alike else np.zeros(len(anchors), bool)
    if same.all():
      return
    row = int(np.flatnonzero(~same)[0])
    case = Case(expected, got, anchors) if make_case is None else make_case()
    want, had = _shown(expected[row], got[row])
    if is_alike and stage in ("output", "action") and expected.dtype.kind == "f":
      most = relative_errors(expected, got)[row].max()
      allowed = describe_tolerance(self._tolerance)
      had += f", off by {most:.2g} of its range where {allowed} is allowed"
    self.add(
      Difference(
        path,
        stage,
        episode.number,
        int(anchors[row]),
        want,
        had,
        int((~same).sum()),
        tuple(find_causes(case)),
      )
    )

  def _compare_paths(self, episode: Episode, seen: Arrays) -> None:
    """Checks that both sides see the same features, if there are any windows."""
    if not len(episode.anchors):
      return
    searched = not any(map(_is_action, seen))
    for path in sorted(set(episode.raw) ^ set(seen)):
      if searched and _is_action(path):
        continue
      ours, theirs = episode.raw.get(path), seen.get(path)
      is_text = ours is not None and ours.dtype == object
      if is_text and not self._subject.tells_inputs:
        continue  # A lite form keeps vectors of texts.
      self.add(
        Difference(
          path,
          "window",
          episode.number,
          0,
          "nothing" if ours is None else errors.describe(ours[0]),
          "nothing" if theirs is None else errors.describe(theirs[0]),
          episode.num_steps,
          (
            "training has no such feature"
            if ours is None
            else "the exported policy is not given it",
          ),
        )
      )

  def _compare_windows(self, episode: Episode, seen: Arrays) -> None:
    masks = mask_paths(self._specs)
    for path, expected in episode.raw.items():
      if path not in seen:
        continue
      stage = "mask" if path in masks else "window"
      got = seen[path][episode.anchors]
      if expected.dtype == object and got.dtype != object:
        continue  # A lite form keeps vectors of texts.
      held = self._subject.step_spec.get(path)
      if held is not None:  # A lite form keeps float64 as float32, for example.
        expected = expected.astype(getattr(held.dtype, "as_numpy_dtype", held.dtype))
      self._note(
        episode,
        stage,
        path,
        expected,
        got,
        episode.anchors,
        make_case=functools.partial(
          self._case, episode, path, expected, got, episode.raw
        ),
      )

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
    is_stack = isinstance(offsets, tuple)
    is_timed = path in episode.observed and path not in episode.context
    before = None
    if raw is None and self._before is not None:
      before = self._before.observed.get(path)
    if (spec is not None and spec.is_sequence) or offsets in (None, "last"):
      offsets = 0
    return Case(
      expected,
      got,
      episode.anchors,
      is_stack,
      offsets if isinstance(offsets, tuple) else (offsets,),
      episode.observed[path] if is_timed and raw is None else None,
      before,
      raw,
      {other: value for other, value in others.items() if other != path},
    )

  def _compare_inputs(self, episode: Episode, inputs: Arrays, seen: Arrays) -> None:
    searched = not any(map(_is_action, seen))
    for path, expected in episode.inputs.items():
      key = specs.signature_key(path)
      if searched and _is_action(path):
        continue
      if key not in inputs:
        self._paths["network input"].add(path)
        want = errors.describe(expected[0])
        self.add(
          Difference(
            path,
            "network input",
            episode.number,
            0,
            want,
            "nothing",
            episode.num_steps,
            ("the exported network is not given it",),
          )
        )
        continue
      got = inputs[key][episode.anchors]
      if expected.dtype.name == "bfloat16":  # A server sends it as float32.
        got = got.astype(expected.dtype)
      same = None
      if expected.shape == got.shape and expected.dtype == got.dtype:
        same, ulps = _rounded_alike(expected, got)
        self._ulps = max(self._ulps, ulps)
      raw = episode.raw.get(path)
      self._note(
        episode,
        "network input",
        path,
        expected,
        got,
        episode.anchors,
        same,
        make_case=functools.partial(
          self._case, episode, path, expected, got, episode.inputs, raw
        ),
      )

  def _compare_outputs(
    self, episode: Episode, said: Arrays, stepped: Arrays, life: _Life
  ) -> None:
    execution = None if self._record is None else self._record.execution
    wanted, anchors = {}, episode.anchors
    if self._predict is not None:
      wanted = self._predicted(episode, self._predict, stepped, life.condition)
    for name, expected in wanted.items():
      got = said.get(name)
      if got is None:
        continue
      got = got[anchors]
      same = None
      if expected.shape == got.shape and expected.dtype.kind == "f":
        same = self._close_rows(got, expected)
      self._note(episode, "output", name, expected, got, anchors, same)
    steps = np.arange(episode.num_steps)
    if execution is None:
      for name, value in said.items():
        if name in stepped and stepped[name].shape == value.shape:
          self._note(episode, "step", name, value, stepped[name], steps)
      return
    if not said:  # What the network should say stands for what it said.
      said = wanted if len(anchors) == episode.num_steps else {}
    for name in execution.outputs:
      if name not in said:
        continue
      got, chunks = stepped[name], said[name]
      expected = _executed(chunks, execution).astype(got.dtype)
      same = self._close_rows(got, expected)
      told = name + CHUNK_SUFFIX
      if (
        not same.all()
        and told in stepped
        and _varies(self._draws(episode, life, stepped)["step"][told])
      ):
        chunks = stepped[told]  # A step tells the chunk that it has drawn.
        expected = _executed(chunks, execution).astype(got.dtype)
        same = self._close_rows(got, expected)
      self._note(
        episode,
        "action",
        name,
        expected,
        got,
        steps,
        same,
        make_case=functools.partial(Case, expected, got, steps),
      )
      difference = self.differences.get(("action", name))
      if difference is not None and not difference.causes:
        cause = _execution_cause(chunks, got, execution)
        del self.differences["action", name]
        self.add(
          Difference(**{**vars(difference), "causes": (cause,)}),
        )

  def _leave_draws(self, episode: Episode, life: _Life, stepped: Arrays) -> None:
    """Takes back differences of what both sides draw, if the draws are alike."""
    for stage, name in [*self.differences]:
      if stage not in ("output", "step"):
        continue
      samples = self._draws(episode, life, stepped)
      sides = ["said", "reference" if stage == "output" else "step"]
      drawn = [samples[side][name] for side in sides if name in samples[side]]
      # Windows that begin later than an episode see other things than its first step.
      is_same = stage == "step" or not episode.anchors[0]
      is_drawn = len(drawn) > 1 and all(map(_varies, drawn))
      if is_drawn and all(_are_alike(drawn[0], x, is_same) for x in drawn[1:]):
        del self.differences[stage, name]
        self._drawn.add(name)

  def _draws(self, episode: Episode, life: _Life, stepped: Arrays) -> dict[str, Arrays]:
    """Returns what is said of an episode's first step, asked again and again."""
    if self._sampled is None:
      steps = [self._subject.take(life.first, True) for _ in range(_NUM_DRAWS)]
      self._sampled = {
        "step": _stack([step.outputs for step in steps]),
        "said": _stack([step.inspection.said for step in steps]),
        "reference": {},
      }
      if self._predict is not None and len(episode.anchors):
        asked = (episode, self._predict, stepped, life.condition, 1)
        rows = [self._predicted(*asked) for _ in range(_NUM_DRAWS)]
        # Of sequences all steps are said at once.
        rows = [{name: value[:1] for name, value in row.items()} for row in rows]
        self._sampled["reference"] = _stack(rows)
    return self._sampled

  def _close_rows(self, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns which rows are equal to the tolerance, bool [n]."""
    # A NaN that both have is the data's, of which there is a warning.
    error = relative_errors(expected, got).reshape([len(got), -1])
    return np.asarray((error <= self._tolerance).all(axis=1))

  def _predicted(
    self,
    episode: Episode,
    predict: Callable[..., Arrays],
    stepped: Arrays,
    condition: Arrays,
    limit: int | None = None,
  ) -> Arrays:
    """Returns what the network says of training's windows, or of the first ones."""
    if self._subject.one_task is not None:
      if not condition:
        return {}
      # One by one, as below.
      rows = [
        self._subject.one_task.predict(
          predict, condition, {path: v[i : i + 1] for path, v in episode.raw.items()}
        )
        for i in range(len(episode.anchors[:limit]))
      ]
      return _stack(rows)
    spec = self._specs
    if self._learns_more:
      return {}
    # Of a critic that searches the action is the one that it found, not the data's.
    asked = _seen_specs(spec, self._subject.step_spec)
    given = {path: value for path, value in episode.raw.items() if path in asked}
    count = len(episode.anchors)
    if not count:
      return {}
    sequences = {path for path, leaf in spec.items() if leaf.is_sequence}
    if sequences:
      if count != episode.num_steps:
        return {}
      given = {
        path: value[np.newaxis] if path in sequences else value[:1]
        for path, value in given.items()
      }
      return {name: value[0] for name, value in predict(given).items()}
    missing = [path for path in spec if path not in given]
    keys = {path: specs.signature_key(path) for path in missing}
    names = {p: key if key in stepped else "action" for p, key in keys.items()}
    if not set(names.values()) <= set(stepped):
      return {}
    for path in missing:
      action = stepped[names[path]][episode.anchors]
      shape = spec[path].shape.as_list()
      repeated = np.broadcast_to(action[:, np.newaxis], [count, *shape])
      given[path] = np.ascontiguousarray(repeated)
    # One by one, as the policy is asked: draws may depend on the place in a batch.
    outputs = _stack(
      [
        predict({path: given[path][i : i + 1] for path in spec})
        for i in range(count)[:limit]
      ]
    )
    if missing:  # Of a search all candidates are the action that was found.
      outputs = {name: value[:, 0] for name, value in outputs.items()}
    return outputs


def _whose(reference: Any) -> str:
  is_export = isinstance(reference, policies.ExportedSavedModelPredictor)
  return "export" if is_export else "checkpoint"


def _is_action(path: str) -> bool:
  """Whether it is what a critic's search looks for."""
  return path == "action" or path.startswith("action/")


def _rounded_alike(expected: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, int]:
  """Returns which rows are equal but for the last place, and by how many ulps."""
  same = equal_rows(expected, got)
  if same.all() or expected.dtype not in (np.float32, np.float64):
    return same, 0
  # Where values cancel, an ulp of what was subtracted counts: that of the largest.
  largest = np.maximum(np.abs(expected), np.abs(got)).max(initial=0.0)
  with np.errstate(invalid="ignore"):
    ulps = np.abs(expected - got) / np.spacing(largest.astype(expected.dtype))
  rows = np.nan_to_num(ulps, nan=np.inf).reshape([len(ulps), -1]).max(1, initial=0.0)
  same = same | (rows <= _MOST_ULPS)
  counted = rows[same]
  return same, int(np.ceil(counted.max(initial=0.0)))


def _executed(said: np.ndarray, execution: policies.ChunkExecution) -> np.ndarray:
  """Returns the actions that chunks should lead to.

  Args:
    said: what the network says at each step, [T, n, ...].
    execution: as it is declared.
  """
  length, actions = said.shape[1], []
  for step in range(len(said)):
    asked = [s for s in range(0, step + 1, execution.num_executed) if step - s < length]
    if execution.ensemble_decay is None:
      actions.append(said[asked[-1], step - asked[-1]])
      continue
    # Chunks count from the oldest that still says something of this step.
    exponents = -execution.ensemble_decay * np.arange(len(asked))
    weights = np.exp(exponents - exponents.max())
    plans = np.stack([said[s, step - s] for s in asked]).astype(np.float64)
    actions.append(np.tensordot(weights / weights.sum(), plans, 1))
  return np.stack(actions)


def _execution_cause(
  said: np.ndarray, got: np.ndarray, execution: policies.ChunkExecution
) -> str:
  """Finds an execution that leads to the actions that there were."""
  length = said.shape[1]
  for late in range(1, min(length, 4)):
    moved = np.concatenate([said[:, late:], np.repeat(said[:, -1:], late, 1)], 1)
    if np.allclose(_executed(moved, execution), got, 1e-4, 1e-5):
      return f"each chunk is executed from its action {late + 1} on"
  for num_executed in range(1, length + 1):
    for decay in {None, 0.0, 0.01, execution.ensemble_decay}:
      other = policies.ChunkExecution(num_executed, decay, execution.outputs)
      if np.allclose(_executed(said, other), got, 1e-4, 1e-5):
        return (
          f"chunks are executed with num_executed={num_executed}, ensemble_decay="
          f"{decay} in place of {execution.num_executed}, {execution.ensemble_decay}"
        )
  return "the execution of chunks is another one than the export declares"


def _varies(draws: np.ndarray) -> bool:
  """Tells whether finite numbers, [draws, ...], are others each time."""
  is_number = draws.dtype.kind in "fiu" and bool(np.isfinite(draws).all())
  return is_number and bool((draws != draws[0]).any())


def _are_alike(one: np.ndarray, other: np.ndarray, is_same: bool) -> bool:
  """Tells whether draws, [draws, ...], of two sides may be of one distribution.

  Args:
    one: of the first side.
    other: of the other one.
    is_same: whether both were asked about the same.
  """
  one, other = (x.reshape([len(x), -1]).astype(np.float64) for x in (one, other))
  apart = one - one.mean(0), other - other.mean(0)
  together = (apart[0] * apart[1]).sum() / np.sqrt(
    np.square(apart[0]).sum() * np.square(apart[1]).sum()
  )
  if together > 0.5:  # Of the same random numbers they make others.
    return False
  error = np.sqrt((one.var(0) + other.var(0)) / len(one))
  is_near = np.abs(one.mean(0) - other.mean(0)) <= _MOST_ERRORS * error + 1e-6
  return not is_same or bool(is_near.all())


def _shown(expected: np.ndarray, got: np.ndarray) -> tuple[str, str]:
  """Describes two values where they differ first."""
  if expected.shape != got.shape or expected.dtype != got.dtype:
    return errors.describe(expected), errors.describe(got)
  if expected.size <= 8:
    return _text(expected), _text(got)
  different = np.asarray(expected != got)
  if not different.any():
    return _text(expected.ravel()[:8]), _text(got.ravel()[:8])
  place = tuple(int(i) for i in np.argwhere(different)[0])
  where = list(place)
  return f"{_text(expected[place])} at {where}", f"{_text(got[place])}"


def _text(value: np.ndarray) -> str:
  return np.array2string(np.asarray(value), precision=6, separator=", ").replace(
    "\n", ""
  )
