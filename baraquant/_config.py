# SPDX-License-Identifier: BSD-3-Clause
"""The base of all configurations: their conversion to dictionaries and back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

VERSION = 6  # of the dictionaries
# The fields that older dictionaries lack: the version that has them first, and their value before.
_SINCE: dict[str, tuple[int, Any]] = {
    "scale_dtype": (2, "float32"),
    "conv_inputs": (2, None),
    "backward": (3, "float"),
    "rounding": (3, "nearest"),
    "rotate": (4, None),
    "group_factors": (5, False),
    "master": (6, None),
}

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """The base of all configurations: a name, and the conversion to a dictionary and back."""

    scheme: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Config]]] = {}  # by the scheme that a dictionary names

    def __init_subclass__(cls) -> None:
        if "scheme" in vars(cls):
            Config.kinds[cls.scheme] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data (JSON can hold it), with the scheme and a version."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain = {k: v.to_dict() if isinstance(v, Config) else v for k, v in values.items()}
        return {"scheme": self.scheme, "version": VERSION, **plain}

    @classmethod
    def from_dict(cls: type[C], data: dict[str, Any]) -> C:
        """Return the configuration that :meth:`to_dict` wrote; ``Config`` itself takes any.

        A field that was added after the dictionary's version gets its default.

        Raises:
            ValueError: The scheme is another one, the version is newer, a field is missing or
                unknown, or a value is invalid.
            TypeError: A value has another type, for example a list instead of the dictionary.
        """
        if not isinstance(data, dict):
            raise TypeError(f"{cls.__name__}: expected a dict, but got {type(data).__name__}")
        version, scheme = data.get("version"), data.get("scheme")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise ValueError(
                f"{cls.__name__}: expected version to be at most {VERSION}, but got {version!r}; "
                "a newer baraquant may have written it"
            )
        kind = cls.kinds.get(scheme) if isinstance(scheme, str) else None
        if kind is None or not issubclass(kind, cls):
            known = cls.scheme or ", ".join(cls.kinds)
            raise ValueError(f"{cls.__name__}: expected scheme {known}, but got {scheme!r}")
        names = {entry.name for entry in fields(kind)}
        since = {name: _SINCE[name] for name in names & _SINCE.keys()}
        older = {name: value for name, (first, value) in since.items() if version < first}
        names -= older.keys()
        given = data.keys() - {"scheme", "version"}
        if given != names:
            raise ValueError(
                f"{kind.__name__}: expected the fields {_listed(names)}, but got {_listed(given)}"
            )
        values = {
            name: Config.from_dict(data[name]) if isinstance(data[name], dict) else data[name]
            for name in names
        }
        return kind(**values, **older)


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
