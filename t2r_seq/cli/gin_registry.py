"""Names, parameters and defaults that gin can configure; suggests the nearest."""

from __future__ import annotations

import fnmatch
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from t2r_seq import errors

_UNKNOWN = re.compile(r"No configurable matching (?:reference )?'@?([\w./]+)")
_UNKNOWN_PARAMETER = re.compile(
  r"Configurable '([^']*)' doesn't have a parameter named '([^']*)'"
)
UNDEFINED = re.compile("No bindings specified for '([^']*)/gin.macro'")
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_MAX_DEFAULT, _WIDTH = 60, 96


def configurables() -> dict[str, Any]:
  """Returns gin's configurables, by the shortest unique name."""
  gin = sys.modules.get("gin")
  if gin is None:
    return {}
  registry = gin.config._REGISTRY
  by_name = {
    registry.minimal_selector(name): configurable
    for name, configurable in registry.items()
  }
  # gin's own configurables, such as gin.macro, are its syntax.
  return {n: f for n, f in sorted(by_name.items()) if f.module.split(".")[0] != "gin"}


def parameters(configurable: Any) -> dict[str, inspect.Parameter]:
  """Returns the parameters that can be bound, by name; with those of base classes."""
  return _parameters(configurable)[0]


def _parameters(configurable: Any) -> tuple[dict[str, inspect.Parameter], bool]:
  """Returns the parameters by name, and whether the list is complete."""
  wrapped = configurable.wrapped
  functions = [wrapped]
  if inspect.isclass(wrapped):
    owners = [vars(owner) for owner in wrapped.__mro__]
    functions = [owner["__init__"] for owner in owners if "__init__" in owner]
  parameters: dict[str, inspect.Parameter] = {}
  is_all = False
  for function in functions:
    try:
      given = inspect.signature(inspect.unwrap(function)).parameters
    except (TypeError, ValueError):  # Written in C.
      break
    for name, parameter in given.items():
      if parameter.kind not in _VARIADIC and name != "self":
        parameters.setdefault(name, parameter)
    is_all = all(p.kind != inspect.Parameter.VAR_KEYWORD for p in given.values())
    # Keras' base layer takes `**kwargs` only to refuse unknown ones.
    if is_all or _is_keras_layer(function):
      is_all = True
      break
  parameters |= _fields_of_values(parameters, functions[0])
  allowed, denied = configurable.allowlist, configurable.denylist or ()
  options = {
    name: parameter
    for name, parameter in parameters.items()
    if name not in denied and (not allowed or name in allowed)
  }
  return options, is_all


def _is_keras_layer(function: Any) -> bool:
  """Whether a function is the constructor of Keras' base class of layers."""
  module = str(getattr(function, "__module__", ""))
  return module.split(".")[0] in ("keras", "tf_keras") and (
    getattr(function, "__qualname__", "") == "Layer.__init__"
  )


def unknown_parameter() -> str:
  """Describes a binding of a parameter that a class lacks, or returns ''.

  gin itself accepts any name if a constructor has `**kwargs`.
  """
  registry = sys.modules["gin"].config
  for (_, selector), bound in registry._CONFIG.items():
    configurable = registry._REGISTRY.get_match(selector)
    if configurable is None or not inspect.isclass(configurable.wrapped):
      continue
    parameters, is_all = _parameters(configurable)
    for name in bound if is_all else ():
      if name not in parameters:
        return f"{configurable.name}.{name}: there is no such parameter." + (
          errors.nearest(name, parameters)
        )
  return ""


def _fields_of_values(
  parameters: Mapping[str, inspect.Parameter], function: Any
) -> dict[str, inspect.Parameter]:
  """Returns the fields of `Cut` or `Plan` that a function also takes as `**fields`."""
  try:
    given = inspect.signature(inspect.unwrap(function)).parameters.values()
  except (TypeError, ValueError):  # Written in C.
    return {}
  if not any(p.kind == inspect.Parameter.VAR_KEYWORD for p in given):
    return {}
  from t2r_seq import windows  # Loads TensorFlow, which hints do without.
  from t2r_seq.data.plan import Plan

  values = {"cut": windows.Cut, "plan": Plan}
  return {
    name: parameter
    for value, cls in values.items()
    if value in parameters
    for name, parameter in inspect.signature(cls).parameters.items()
    if name not in parameters and name != "where"
  }


def hint(text: str) -> str:
  """Returns the nearest name for gin's error about an unknown one, or ''."""
  names = configurables()
  if unknown := _UNKNOWN.search(text):
    name = unknown[1].rpartition("/")[2]
    # 'models.MLPP': the module is not a part of the shortest name.
    return errors.nearest(name, names) or errors.nearest(name.split(".")[-1], names)
  if undefined := UNDEFINED.match(text):
    macros = [scope for scope, name in sys.modules["gin"].config._CONFIG if scope]
    return errors.nearest(undefined[1], macros)
  if unknown := _UNKNOWN_PARAMETER.search(text):
    owner = names.get(unknown[1]) or names.get(unknown[1].rpartition(".")[2])
    if owner:
      return errors.nearest(unknown[2], parameters(owner))
  return ""


def matching(pattern: str) -> dict[str, Any]:
  """Returns configurables by name, a pattern such as '*Sink', or a part of the name."""
  all_names = configurables()
  folded = pattern.lower()
  if exact := {n: f for n, f in all_names.items() if n.lower() == folded}:
    return exact
  if any(sign in pattern for sign in "*?["):
    return {n: f for n, f in all_names.items() if fnmatch.fnmatch(n.lower(), folded)}
  return {n: f for n, f in all_names.items() if folded in n.lower()}


def render_names(names: Mapping[str, Any]) -> str:
  """Renders a line for each configurable: its name and a summary."""
  width = min(36, max(map(len, names)))
  lines = []
  for name, configurable in names.items():
    rest = _WIDTH - max(width, len(name)) - 2
    summary = textwrap.shorten(_first_line(configurable), rest, placeholder=" ...")
    lines.append(f"{name:{width}}  {summary}".rstrip())
  return "\n".join(lines)


def render(name: str, configurable: Any) -> str:
  """Renders a configurable with its parameters and their defaults."""
  where = configurable.wrapped.__module__
  if where.startswith("t2r_seq."):
    where = ".".join(where.split(".")[:2])
  lines = [f"{name}  (import {where})"]
  if summary := _first_line(configurable):
    lines += textwrap.wrap(summary, _WIDTH, initial_indent="  ", subsequent_indent="  ")
  return "\n".join([*lines, *_bindings(name, parameters(configurable))])


def _bindings(name: str, parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
  absents = (inspect.Parameter.empty, sys.modules["gin"].REQUIRED)
  for key, parameter in parameters.items():
    if any(parameter.default is absent for absent in absents):
      yield f"    {name}.{key}: has to be given"
    else:
      yield f"    {name}.{key} = {_default(parameter.default)}"


def _default(value: Any) -> str:
  """Renders a default as a gin value, as far as possible; long ones are cut."""
  if callable(value) and hasattr(value, "__name__"):
    return f"@{value.__name__}"
  text = " ".join(repr(value).split())
  return text if len(text) <= _MAX_DEFAULT else f"{text[:_MAX_DEFAULT]}..."


def _first_line(configurable: Any) -> str:
  return (inspect.getdoc(configurable.wrapped) or "").split("\n")[0]
