"""A mapping that never changes and of which a successor with a few entries more, or changed, costs little however many there are. Pure."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Layers(Mapping[Key, Value]):
    """Layers over one another, each at least twice as large as the one above it: an entry is copied, and looked for, a logarithmic number of times.

    It is walked in the order in which keys first came, as a dict that was updated.
    """

    def __init__(self, base: Mapping[Key, Value]) -> None:
        """Of ``base`` as it is now."""
        self._layers: tuple[dict[Key, Value], ...] = (dict(base),)
        """Oldest first."""
        self._count = len(self._layers[0])

    def updated(self, news: Mapping[Key, Value]) -> Layers[Key, Value]:
        """The same with these entries; this one stays as it is."""
        if not news:
            return self
        made = Layers[Key, Value]({})
        layers, top = list(self._layers), dict(news)
        made._count = self._count + sum(1 for key in top if key not in self)
        while layers and 2 * len(top) >= len(layers[-1]):
            top = {**layers.pop(), **top}
        made._layers = (*layers, top)
        return made

    def __getitem__(self, key: Key) -> Value:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._flat())

    def __len__(self) -> int:
        return self._count

    def keys(self) -> KeysView[Key]:
        """All of them."""
        return self._flat().keys()

    def values(self) -> ValuesView[Value]:
        """All of them."""
        return self._flat().values()

    def items(self) -> ItemsView[Key, Value]:
        """All of them."""
        return self._flat().items()

    def _flat(self) -> dict[Key, Value]:
        """One layer, for who walks over everything."""
        if len(self._layers) > 1:
            flat: dict[Key, Value] = {}
            for layer in self._layers:
                flat |= layer
            self._layers = (flat,)
        return self._layers[0]


def updated(mapping: Mapping[Key, Value], news: Mapping[Key, Value]) -> Mapping[Key, Value]:
    """``mapping`` with these entries, in layers if it is."""
    return mapping.updated(news) if isinstance(mapping, Layers) else {**mapping, **news}
