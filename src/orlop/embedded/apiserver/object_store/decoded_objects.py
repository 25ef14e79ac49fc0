"""Objects as Python values, for those who look inside.

The last few are remembered, so that a hundred watches with selectors decode a change once and not a hundred times.
A revision names one version for ever, so what is remembered is never stale. The values are shared: nobody may change
them. Whoever builds a new version decodes one of his own with `fresh`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from orlop.embedded.apiserver.object_store.versions import Stored

JSON: Final = msgspec.json.Decoder(dict[str, Any])


def fresh(stored: Stored) -> dict[str, Any]:
    return JSON.decode(stored.json)


class DecodedObjects:
    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._values: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def of(self, stored: Stored) -> Mapping[str, Any]:
        if stored.revision in self._values:
            self._values.move_to_end(stored.revision)
            return self._values[stored.revision]
        value = self._values[stored.revision] = fresh(stored)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value
