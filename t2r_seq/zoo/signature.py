"""Finds the inputs and outputs of a policy in a data set."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.episodes import Episodes
from t2r_seq.specs import Convention, ExtendedTensorSpec
from t2r_seq.specs.extended_tensor_spec import frame_spec

_ACTION = re.compile(r"(^|[/.])actions?$")
_OBSERVATION = re.compile(r"^(obs|observations?)([/.]|$)")
# Words of paths that are not observations of the current step.
_OTHER = re.compile(
  r"(^|[/._])(actions?|next|rewards?|returns?|dones?|discount|success|info|infos|clocks"
  r"|terminals?|terminations?|terminated|truncations?|truncated|timeouts?|timestamp"
  r"|index|is_first|is_last|is_terminal)([/._]|$)"
)
_LANGUAGE = re.compile(r"(^|[/._])(task|language|instruction|prompt)s?([/._]|$)")
_CHANNELS = (1, 3, 4)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Signature:
  """The paths of a data set that a policy reads, and their specs.

  Attributes:
    action: path of the actions.
    action_size: elements of an action.
    states: shapes of a step's vectors, [D] or [], by path.
    cameras: shapes of a step's images, [height, width, channels], by path.
    data_formats: encodings of stored images, such as 'jpeg', by path; without one they
      are stored as arrays.
    language: path of the text, or None.
    language_is_step: whether each step has the text; False for one text an episode.
    stored_dtypes: dtypes of stored states and actions, if not float32, by path.
    conventions: meaning of the numbers by path, as the fields of a `Convention`.
    embodiments: the `Embodiment` of each source of a model of several robots. The other
      fields are then those of the model; see `shared_signature`.
  """

  action: str = gin.REQUIRED  # type: ignore[assignment]
  action_size: int = gin.REQUIRED  # type: ignore[assignment]
  states: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  cameras: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  data_formats: Mapping[str, str] = dataclasses.field(default_factory=dict)
  language: str | None = None
  language_is_step: bool = True
  stored_dtypes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  conventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  embodiments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def describe(self, with_language: bool = True) -> str:
    """Describes the signature in one line."""
    parts = [
      f"{path} {'x'.join(map(str, shape)) or 'number'}"
      for path, shape in {**self.cameras, **self.states}.items()
    ]
    if self.language and with_language:
      parts.append(f"{self.language} (text)")
    return f"{', '.join(parts)} -> {self.action} {self.action_size}"


@gin.configurable
def find_signature(
  episodes: Episodes,
  action: str | None = None,
  observations: Sequence[str] | None = None,
  conventions: Mapping[str, Any] | None = None,
) -> Signature:
  """Finds the actions, states, cameras and text of a data set.

  States are vectors of floats or single floats; cameras are uint8 images with 1, 3 or 4
  channels. If there are any below `obs` or `observation`, others are left out. So are
  rewards, flags, times and values of the next step.

  Args:
    episodes: the data set.
    action: path of the actions; None finds the only path whose last part is `action` or
      `actions`, at the top level if there is one.
    observations: paths of states and cameras, or patterns of them; None finds them.
    conventions: fields of `Convention`s, by path, in place of those that the data set
      declares.
  Returns:
    The signature.
  Raises:
    SpecError: no or several candidates for the action; no observations; a path that is
      missing or of another kind; or an invalid convention.
  """
  where = f"train: {episodes.path}"
  candidates = {
    path: frame_spec(spec)
    for path, spec in episodes.spec.items()
    if spec.is_sequence or spec.dtype == tf.string
  }
  action = _find_action(where, candidates, action)
  kinds = {path: _kind(spec) for path, spec in candidates.items() if path != action}
  # Sorted, as gin writes the operative config, by which `verify` builds the network.
  observed = sorted(_find_observations(where, kinds, observations))
  states = {p: candidates[p].shape.as_list() for p in observed if kinds[p] == "state"}
  cameras = {p: candidates[p].shape.as_list() for p in observed if kinds[p] == "camera"}
  if not states and not cameras:
    raise errors.SpecError(
      f"{where}: observations: expected vectors of floats or uint8 images, got "
      f"{_candidates(candidates)}. Name them: --observations PATH ..."
    )
  # Converted LeRobot folders derive the text of the task instead of storing it.
  readable = {**episodes.derived_spec, **episodes.spec}
  texts = [path for path, spec in readable.items() if _kind(spec) == "text"]
  language = min(
    (p for p in texts if _LANGUAGE.search(p)), key=lambda p: (len(p), p), default=None
  )
  paths = (*states, *cameras, action)
  overrides = {p: Convention.of(each) for p, each in (conventions or {}).items()}
  if unknown := [path for path in overrides if path not in paths]:
    raise errors.SpecError(
      f"{where}: conventions: expected paths of {errors.listing(paths)}, got "
      f"'{unknown[0]}'.{errors.nearest(unknown[0], paths)}"
    )
  declared = {path: overrides.get(path, candidates[path].convention) for path in paths}
  for path, each in declared.items():
    ExtendedTensorSpec.from_spec(
      candidates[path], name=path, convention=each
    )  # Checks it.
  return Signature(
    action=action,
    action_size=int(candidates[action].shape[0]),
    states=states,
    cameras=cameras,
    data_formats={
      p: str(candidates[p].data_format)
      for p in cameras
      if specs.is_encoded_image_spec(candidates[p])
    },
    language=language,
    language_is_step=language is None or bool(readable[language].is_sequence),
    stored_dtypes={
      p: candidates[p].dtype.name
      for p in (*states, action)
      if candidates[p].dtype != tf.float32
    },
    conventions={path: each.to_json() for path, each in declared.items() if each},
  )


def check_needs(
  signature: Signature, episodes: Episodes, policy: str, needs: Sequence[str]
) -> None:
  """Checks that a data set has the policy's inputs.

  Args:
    signature: signature of the data set.
    episodes: the data set.
    policy: name of the policy, for the error.
    needs: required inputs, from 'cameras' and 'language'.
  Raises:
    SpecError: an input is missing; lists what there is.
  """
  for need, what in (("cameras", "uint8 images"), ("language", "a text")):
    if need in needs and not getattr(signature, need):
      raise errors.SpecError(
        f"train: {episodes.path}: {need}: expected {what} for the policy {policy}, got "
        f"{_candidates(episodes.spec)}."
      )


def _find_action(
  where: str, features: Mapping[str, ExtendedTensorSpec], action: str | None
) -> str:
  if action is not None and action not in features:
    raise errors.SpecError(
      f"{where}: action: expected a path of the data set, got '{action}'."
      f"{errors.nearest(action, features)} There is {_candidates(features)}."
    )
  named = [path for path in features if _ACTION.search(path)]
  top = [path for path in named if not re.search("[/.]", path)]
  candidates = [action] if action is not None else (top or named)
  if len(candidates) != 1:
    got = f"{errors.listing(candidates)}" if candidates else "none"
    raise errors.SpecError(
      f"{where}: action: expected one path named action or actions, got {got}. Name "
      f"it: --action PATH, one of {_candidates(features)}."
    )
  spec = features[candidates[0]]
  if spec.shape.rank != 1 or not spec.dtype.is_floating:
    raise errors.SpecError(
      f"{where}: {candidates[0]}: expected an action that is a vector of floats, got "
      f"{errors.describe(spec)}. Name another one: --action PATH, one of "
      f"{_candidates(features)}."
    )
  return candidates[0]


def _find_observations(
  where: str, kinds: Mapping[str, str], patterns: Sequence[str] | None
) -> list[str]:
  usable = [path for path, kind in kinds.items() if kind in ("state", "camera")]
  if patterns is None:
    below = [path for path in usable if _OBSERVATION.search(path)]
    return [
      p for p in below or usable if not _OTHER.search(_OBSERVATION.sub("", p))
    ]  # fmt: skip
  for pattern in patterns:
    if not fnmatch.filter(usable, pattern):
      raise errors.SpecError(
        f"{where}: observations: expected vectors of floats or uint8 images, any of "
        f"{errors.listing(usable)}, got '{pattern}'.{errors.nearest(pattern, usable)}"
      )
  return [
    path for path in usable if any(fnmatch.fnmatchcase(path, p) for p in patterns)
  ]


def _kind(spec: ExtendedTensorSpec) -> str:
  """Returns the kind of a path: 'camera', 'state', 'text', or '' for others."""
  shape = spec.shape
  if specs.is_encoded_image_spec(spec) or shape.rank == 3:
    is_camera = (
      spec.dtype == tf.uint8 and shape.is_fully_defined() and shape[-1] in _CHANNELS
    )
    return "camera" if is_camera else ""
  if spec.dtype == tf.string and shape.rank == 0:
    return "text"
  is_state = spec.dtype.is_floating and shape.rank in (0, 1) and spec.is_sequence
  return "state" if is_state and shape.is_fully_defined() else ""


def _candidates(candidates: Mapping[str, Any]) -> str:
  return errors.listing(
    f"{path} {errors.describe(spec)}" for path, spec in candidates.items()
  )
