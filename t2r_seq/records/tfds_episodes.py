"""RLDS episodes by way of TensorFlow Datasets: whatever it can read, in any format.

TFRecord files of most datasets can be read without it: see `rlds`. It takes TFDS where
tensors are compressed, where files are no TFRecord files, or to find one by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import images, rlds

# More steps than an episode has; one batch is all of it.
_ALL_STEPS = 1 << 40


class TfdsEpisodes:
  """The episodes of one split of a TFDS dataset in RLDS's layout.

  Attributes:
    spec: flat specs by path: 'observation/image', 'action', ..., as `propose_spec` has
      them. Images whose size TFDS does not declare are encoded strings.
    num_episodes: in the split.
    fingerprint: JSON values that another version or split does not have.
  """

  def __init__(
    self,
    source: Any,
    split: str = "train",
    leave_out: Callable[[str], bool] | None = None,
  ) -> None:
    """Opens the dataset, which must have been prepared.

    Args:
      source: the name of a dataset, the folder of a prepared one, or a TFDS builder.
      split: as TFDS writes them: 'train', 'train[:100]', ...
      leave_out: says of a path whether to leave it out; None leaves out none.
    Raises:
      ImportError: TFDS is not installed; names the extra.
      SpecError: no such dataset or split, no episodes, or steps of unknown shape;
        with every path.
    """
    self._split = split
    self._builder = _open_builder(source)
    info = self._builder.info
    self._name = str(info.full_name)
    self._check_is_rlds(info.features)
    self._images = dict(_find_images(info.features, ""))
    self._dataset = self._read()
    self.spec = self._make_spec(leave_out or (lambda path: False))
    self.num_episodes = int(info.splits[split].num_examples)
    self.fingerprint = {
      "dataset": self._name,
      "split": split,
      "num_episodes": self.num_episodes,
    }

  def dataset(self, decode_images: bool = True) -> tf.data.Dataset:
    """Creates the dataset of episodes, in the order of the files.

    Args:
      decode_images: otherwise images are strings.
    Returns:
      Dataset of TensorSpecStructs by path, [T, ...]; `windows.windows` takes it.
    """

    @tf.autograph.experimental.do_not_convert
    def to_episode(element: Mapping[str, Any]) -> specs.TensorSpecStruct:
      steps = element[rlds.STEPS].batch(_ALL_STEPS).get_single_element()
      found = {
        **dict(_flatten({k: v for k, v in element.items() if k != rlds.STEPS}, "")),
        **dict(_flatten(steps, "")),
      }
      return specs.TensorSpecStruct(
        (path, self._decode(path, found[path], decode_images)) for path in self.spec
      )

    return self._dataset.map(to_episode, num_parallel_calls=2, deterministic=True)

  def _decode(self, path: str, value: tf.Tensor, decode_images: bool) -> tf.Tensor:
    spec = self.spec[path]
    if decode_images and specs.is_encoded_image_spec(spec):
      return images.decode_images(value, spec, path)
    return value

  def _read(self) -> tf.data.Dataset:
    tfds = _load_tfds()
    decoders: dict[str, Any] = {}
    for name in self._images:
      *folders, leaf = name.split("/")
      node = decoders
      for folder in folders:
        node = node.setdefault(folder, {})
      node[leaf] = tfds.decode.SkipDecoding()
    try:
      return self._builder.as_dataset(
        split=self._split, shuffle_files=False, decoders=decoders or None
      )
    except (AssertionError, KeyError, ValueError) as error:
      raise self._error("a split that is prepared", f"'{self._split}': {error}") from (
        error
      )

  def _make_spec(self, leave_out: Callable[[str], bool]) -> specs.TensorSpecStruct:
    element = self._dataset.element_spec
    context = {key: value for key, value in element.items() if key != rlds.STEPS}
    leaves = [
      *((path, path, leaf, False) for path, leaf in _flatten(context, "")),
      *(
        (path, f"{rlds.STEPS}/{path}", leaf, True)
        for path, leaf in _flatten(element[rlds.STEPS].element_spec, "")
      ),
    ]
    found = []
    spec = specs.TensorSpecStruct()
    for path, name, leaf, is_step in sorted(leaves, key=lambda item: item[0]):
      is_known = isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
      if leave_out(path):
        continue
      if not is_known:
        hint = f"Leave it out; of a conversion with --drop {path}."
        want = "a shape that all steps have" if is_step else "a known shape"
        found.append(errors.Mismatch(path, want, str(leaf), hint))
        continue
      image = self._images.get(name)
      shape, dtype, data_format = image or (leaf.shape, leaf.dtype, None)
      spec[path] = specs.ExtendedTensorSpec(
        shape, dtype, name, is_sequence=is_step, data_format=data_format
      )
    if found:
      raise errors.mismatch_error(f"tfds: {self._name}", found)
    return spec

  def _check_is_rlds(self, features: Any) -> None:
    if rlds.STEPS not in features:
      names = errors.listing(features)
      raise self._error(f"episodes, with a dataset of '{rlds.STEPS}'", names)

  def _error(self, expected: str, got: str) -> errors.SpecError:
    return errors.SpecError(f"tfds: {self._name}: expected {expected}, got {got}.")


def _load_tfds() -> Any:
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise errors.missing_extra("tensorflow_datasets", "tfds") from error
  return tfds


def _open_builder(source: Any) -> Any:
  if not isinstance(source, (str, os.PathLike)):
    return source
  tfds = _load_tfds()
  name = os.fspath(source)
  try:
    if os.path.isdir(name):
      return tfds.builder_from_directory(name)
    return tfds.builder(name)
  except (FileNotFoundError, tfds.core.registered.DatasetNotFoundError) as error:
    reason = str(error).strip().splitlines()[0]
    raise errors.SpecError(
      f"tfds: {name}: expected the name of a dataset, or the folder of a prepared one "
      f"(with a features.json), got {reason}"
    ) from error


def _find_images(
  features: Any, name: str
) -> Iterator[tuple[str, tuple[Any, ...] | None]]:
  """Yields the encoded images: shape, dtype and encoding, or None without a size."""
  kinds = _load_tfds().features
  if isinstance(features, kinds.FeaturesDict):
    for key, child in features.items():
      yield from _find_images(child, f"{name}/{key}" if name else key)
  elif name == rlds.STEPS:
    yield from _find_images(features.feature, name)
  elif isinstance(features, kinds.Image):
    encoding = features.to_json()["content"].get("encodingFormat", "png")
    is_known = None not in features.shape
    yield name, (features.shape, features.tf_dtype, encoding) if is_known else None


def _flatten(node: Any, name: str) -> Iterator[tuple[str, Any]]:
  if isinstance(node, Mapping):
    for key, child in node.items():
      yield from _flatten(child, f"{name}/{key}" if name else key)
  else:
    yield name, node
