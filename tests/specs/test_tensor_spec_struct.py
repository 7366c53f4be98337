"""TensorSpecStruct: one flat ordered dict, live views, errors."""

from __future__ import annotations

import collections
import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct

IMAGE = Spec((8, 8, 3), tf.uint8, "image", data_format="jpeg")
ACTION = Spec((2,), tf.float32, "action")
EXTRA = Spec((), tf.int64, "extra", is_optional=True)

Sample = collections.namedtuple("Sample", ["image", "action"])
Split = collections.namedtuple("Split", ["train", "test"])


def make():
  return TensorSpecStruct(
    [
      ("train/image", IMAGE),
      ("train/action", ACTION),
      ("test/image", IMAGE),
      ("test/action", ACTION),
      ("magic", EXTRA),
    ]
  )


PATHS = ["train/image", "train/action", "test/image", "test/action", "magic"]

SOURCES = {
  "pairs": [("a/x", 1), ("a/y", 2), ("b", 3)],
  "flat dict": {"a/x": 1, "a/y": 2, "b": 3},
  "nested dict": {"a": {"x": 1, "y": 2}, "b": 3},
  "ordered dict": collections.OrderedDict([("a/x", 1), ("a/y", 2), ("b", 3)]),
  "struct": TensorSpecStruct({"a": {"x": 1, "y": 2}, "b": 3}),
  "struct in a dict": {"a": TensorSpecStruct(x=1, y=2), "b": 3},
  "view in a dict": {"a": TensorSpecStruct({"q/x": 1, "q/y": 2}).q, "b": 3},
  "generator": ((k, v) for k, v in [("a/x", 1), ("a/y", 2), ("b", 3)]),
  "namedtuple value": {"a": collections.namedtuple("XY", ["x", "y"])(1, 2), "b": 3},
}


@pytest.mark.parametrize("name", SOURCES)
def test_construction(name):
  struct = TensorSpecStruct(SOURCES[name])
  assert list(struct.items()) == [("a/x", 1), ("a/y", 2), ("b", 3)]
  assert len(struct) == 3


def test_construction_by_keywords():
  struct = TensorSpecStruct({"z": 0}, nested=Split(Sample(1, 2), {"o": 3}), last=4)
  assert struct.to_dict() == {
    "z": 0,
    "nested/train/image": 1,
    "nested/train/action": 2,
    "nested/test/o": 3,
    "last": 4,
  }
  assert struct.nested.train.to_dict() == {"image": 1, "action": 2}
  assert TensorSpecStruct() == {}
  assert TensorSpecStruct(items=5, self=6)["items"] == 5


def test_dict_side_is_flat_and_ordered():
  struct = make()
  assert list(struct) == list(struct.keys()) == PATHS
  assert [path for path, _ in struct.items()] == PATHS
  assert list(struct.values())[-1] is EXTRA
  assert "train/image" in struct
  assert "train" not in struct
  assert "image" not in struct
  assert 3 not in struct


def test_hierarchical_side():
  struct = make()
  assert list(struct.train) == ["image", "action"]
  assert len(struct.train) == 2
  assert struct.train.action is ACTION
  assert struct["train"]["action"] is ACTION
  assert struct["train/action"] is ACTION
  assert struct.train["action"] is ACTION
  assert struct.magic is EXTRA
  assert "image" in struct.train
  assert "train/image" not in struct.train
  assert struct["train"].to_dict() == struct.train.to_dict()


def test_deep_views():
  struct = TensorSpecStruct({"a/b/c/d": 1, "a/b/e": 2})
  assert struct.a.b.c.d == 1
  assert struct.a["b/c"].d == 1
  assert list(struct.a.b) == ["c/d", "e"]
  struct.a.b.c.f = 3
  assert list(struct) == ["a/b/c/d", "a/b/e", "a/b/c/f"]


def test_view_changes_its_parent():
  struct = make()
  train = struct.train
  train.added = EXTRA
  assert list(train) == ["image", "action", "added"]
  assert list(struct) == [*PATHS, "train/added"]
  train["deep/er"] = 1
  assert struct["train/deep/er"] == 1
  del train["image"]
  del train.action
  assert "train/image" not in struct
  assert list(train) == ["added", "deep/er"]
  train.added = IMAGE
  assert struct.train.added is IMAGE


def test_parent_changes_its_views():
  struct = make()
  train, other = struct.train, struct["train"]
  struct["train/added"] = EXTRA
  assert train.added is EXTRA
  assert other.added is EXTRA
  del struct["train/action"]
  assert list(train) == ["image", "added"]
  with pytest.raises(AttributeError, match="train/action: no such path"):
    _ = train.action
  struct["train/image"] = ACTION
  assert train.image is ACTION


def test_deleting_a_branch():
  struct = make()
  train = struct.train
  del struct.train
  assert list(struct) == ["test/image", "test/action", "magic"]
  assert len(train) == 0
  train.back = EXTRA
  assert struct.train.back is EXTRA


def test_val_does_not_catch_val_mode():
  struct = TensorSpecStruct()
  struct.val_mode = np.ones(1)
  struct.val = {"mode": np.zeros(1), "data": np.ones(1)}
  assert list(struct.val) == ["mode", "data"]
  assert list(struct["val"]) == ["mode", "data"]
  del struct["val"]
  assert list(struct) == ["val_mode"]
  with pytest.raises(AttributeError, match=r"val: no such .* is \[val_mode\]"):
    _ = struct.val


@pytest.mark.parametrize(
  "value",
  [
    Sample(IMAGE, ACTION),
    {"image": IMAGE, "action": ACTION},
    TensorSpecStruct(image=IMAGE, action=ACTION),
    make().train,
  ],
  ids=["namedtuple", "dict", "struct", "view"],
)
def test_structures_flatten_on_assignment(value):
  by_attribute, by_item = TensorSpecStruct(), TensorSpecStruct()
  by_attribute.new = value
  by_item["new"] = value
  want = {"new/image": IMAGE, "new/action": ACTION}
  assert by_attribute.to_dict() == by_item.to_dict() == want
  assert list(by_attribute) == list(want)


def test_assignment_copies_and_merges():
  struct = make()
  source = TensorSpecStruct(action=EXTRA, more=IMAGE)
  struct.train = source
  assert list(struct.train) == ["image", "action", "more"]
  assert struct.train.action is EXTRA
  source.late = ACTION
  assert "train/late" not in struct


def test_assigning_a_struct_below_itself():
  struct = TensorSpecStruct(a=1, b=2)
  struct.copy_of = struct
  assert struct.to_dict() == {"a": 1, "b": 2, "copy_of/a": 1, "copy_of/b": 2}


def test_hasattr_get_and_pop():
  struct = make()
  assert hasattr(struct, "train")
  assert hasattr(struct.train, "image")
  assert not hasattr(struct, "image")
  assert not hasattr(struct, "_anything")
  assert struct.get("nope") is None
  assert struct.get("nope", 3) == 3
  assert struct.get(0) is None
  assert struct.get("train").action is ACTION
  assert struct.pop("nope", 3) == 3
  assert struct.pop("items", None) is None
  struct["absent"] = None
  assert struct.pop("absent", None) is None and "absent" not in struct
  assert struct.pop("magic") is EXTRA
  assert struct.pop("train").to_dict() == {"image": IMAGE, "action": ACTION}
  assert list(struct) == ["test/image", "test/action"]
  with pytest.raises(KeyError, match="no such path"):
    struct.pop("train")


def test_rest_of_a_mutable_mapping():
  struct = make()
  assert struct.setdefault("magic", 1) is EXTRA
  assert struct.setdefault("new", 1) == 1
  struct.train.update(action=1, other=2)
  assert struct["train/other"] == 2
  struct.train.clear()
  assert list(struct) == ["test/image", "test/action", "magic", "new"]
  assert {**struct}["new"] == 1
  assert dict(struct) == struct.to_dict()
  assert list(struct)[-1] == "new"


def test_to_dict_is_a_copy():
  struct = make()
  flat = struct.to_dict()
  assert type(flat) is dict
  flat["more"] = 1
  assert "more" not in struct


def test_equality_is_that_of_dicts():
  assert make() == make()
  assert make() == make().to_dict()
  assert make().train == {"image": IMAGE, "action": ACTION}
  assert make().train == make().test
  assert make() != make().train
  plain = {"action": tf.TensorSpec((2,), tf.float32)}
  assert TensorSpecStruct(action=ACTION) == plain


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, TensorSpecStruct.copy])
def test_copies_are_independent(clone):
  struct = make()
  other = clone(struct)
  assert type(other) is TensorSpecStruct
  assert list(other) == PATHS
  assert other.train.image.is_identical_to(IMAGE)
  other.train.added = 1
  assert "train/added" not in struct
  view = clone(struct.train)
  view.added = 1
  assert list(view) == ["image", "action", "added"]
  assert "train/added" not in struct


def test_deepcopy_copies_leaves():
  struct = TensorSpecStruct({"a/b": np.zeros(2)})
  copy.deepcopy(struct)["a/b"][0] = 1
  assert struct.a.b[0] == 0
  copy.copy(struct)["a/b"][0] = 1
  assert struct.a.b[0] == 1


def test_pickle():
  struct = pickle.loads(pickle.dumps(make()))
  assert list(struct) == PATHS
  assert struct.train.image.is_identical_to(IMAGE)
  view = pickle.loads(pickle.dumps(make().train))
  assert list(view) == ["image", "action"]
  assert view.action.is_identical_to(ACTION)


def test_repr_can_be_pasted_back():
  names = {"tf": tf, "ExtendedTensorSpec": Spec}
  names["TensorSpecStruct"] = TensorSpecStruct
  for struct in (make(), make().train, TensorSpecStruct()):
    pasted = eval(repr(struct), names)
    assert list(pasted) == list(struct)
    assert all(pasted[path].is_identical_to(struct[path]) for path in struct)


def test_dir_completes_names():
  assert {"train", "test", "magic", "to_json"} <= set(dir(make()))
  assert "train/image" not in dir(make())


EMPTY = {
  "struct": TensorSpecStruct(),
  "dict": {},
  "namedtuple": collections.namedtuple("Nothing", [])(),
  "nested": {"a": {"b": {}}},
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_structure_raises_with_advice(name):
  struct = make()
  match = r"TensorSpecStruct: new.*: expected entries, got an empty .*Fill it first"
  with pytest.raises(errors.SpecError, match=match):
    struct.new = EMPTY[name]
  assert list(struct) == PATHS


def test_failed_assignment_changes_nothing():
  struct = make()
  with pytest.raises(errors.SpecError, match="train/z: expected entries"):
    struct["train"] = {"image": EXTRA, "y": 1, "z": {}}
  assert struct.to_dict() == make().to_dict()


CLASHES = {
  "leaf over a branch": ("train", 1, "cannot add 'train': 'train/image' exists"),
  "branch over a leaf": ("magic/a", 1, "cannot add 'magic/a': 'magic' exists"),
  "mapping over a leaf": ("magic", {"a": 1}, "'magic/a'.*delete one first"),
  "within the mapping": ("q", {"a": 1, "a/b": 2}, "cannot add 'q/a/b': 'q/a' exists"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_path_is_a_leaf_or_a_branch(name):
  key, value, match = CLASHES[name]
  struct = make()
  with pytest.raises(errors.SpecError, match=match):
    struct[key] = value
  assert list(struct) == PATHS


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", 3, None, ("a",)])
def test_bad_keys(key):
  with pytest.raises(errors.SpecError, match="expected a path of names joined by"):
    TensorSpecStruct()[key] = 1


@pytest.mark.parametrize("name", ["items", "copy", "to_json", "pop", "_private"])
def test_names_that_cannot_be_attributes(name):
  struct = TensorSpecStruct()
  with pytest.raises(errors.SpecError, match=rf"Use struct\['{name}'\] = "):
    setattr(struct, name, 1)
  struct[name] = 1
  assert struct[name] == 1
  assert list(struct.items()) == [(name, 1)]


def test_unknown_names():
  struct = make()
  match = "TensorSpecStruct: trian: no such path. Did you mean 'train'?"
  for error in (AttributeError, KeyError, errors.SpecError, ValueError):
    with pytest.raises(error, match=match):
      _ = struct.trian
    with pytest.raises(error, match=match):
      _ = struct["trian"]
  with pytest.raises(AttributeError, match=r"train/imag: .* Did you mean 'image'\?"):
    _ = struct.train.imag
  with pytest.raises(AttributeError, match=r"There is \[magic, test/action, test/im"):
    _ = struct.zzz
  with pytest.raises(KeyError, match=r"magicc: no such path. Did you mean 'magic'"):
    del struct["magicc"]
  with pytest.raises(AttributeError, match=r"train/actio: .*Did you mean 'action'"):
    del struct.train.actio


@pytest.mark.parametrize("items", [None, 0, False])
def test_struct_rejects_values_that_are_no_mapping(items):
  with pytest.raises(TypeError, match="not iterable"):
    TensorSpecStruct(items)


@pytest.mark.parametrize("in_a_dataset", [False, True])
def test_unknown_names_in_graphs(in_a_dataset):
  def look_up(struct):
    return struct.nope

  struct = TensorSpecStruct(note=tf.zeros(3))
  with pytest.raises(errors.UnknownPathError, match=r"nope: .* Did you mean 'note'"):
    if in_a_dataset:
      tf.data.Dataset.from_tensors(struct).map(look_up)
    else:
      tf.function(look_up)(struct)
