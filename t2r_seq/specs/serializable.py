"""The proto and JSON methods that specs and spec structures have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
  from typing_extensions import Self


class Serializable:
  """Mixin: `to_proto`, `to_json` and their inverses; every field is kept."""

  __slots__ = ()
  # Prefix of this class's functions in the module `serialization`.
  _serializer: ClassVar[str]

  @classmethod
  def from_proto(cls, proto: Any) -> Self:
    """Reads the `t2r.proto` message of this class; Tensor2Robot's files read too."""
    return cls._serialization("from_proto")(proto)

  @classmethod
  def from_serialized_proto(cls, serialized: bytes) -> Self:
    """Reads the serialized `t2r.proto` message of this class."""
    return cls._serialization("from_serialized_proto")(serialized)

  def to_proto(self) -> Any:
    """Returns the `t2r.proto` message of this class."""
    return self._serialization("to_proto")(self)

  @classmethod
  def from_json(cls, text: str) -> Self:
    """Reads what `to_json` wrote."""
    return cls._serialization("from_json")(text)

  def to_json(self) -> str:
    """Returns a JSON object, readable and stable."""
    return self._serialization("to_json")(self)

  @classmethod
  def _serialization(cls, function: str) -> Any:
    # The codecs build specs, so they can only be imported once this class exists.
    from t2r_seq.specs import serialization

    return getattr(serialization, f"{cls._serializer}_{function}")
