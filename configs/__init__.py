"""Shared gin files, installed as `t2r_seq.configs`: a package, as gin looks for one."""

__all__: list[str] = []
