"""What every part of the API server works with: the store, the schemas, the time, and chance.

Everything is handed in; nothing here decides anything.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final

from orlop.embedded.apiserver.object_store.store import ObjectStore
from orlop.embedded.apiserver.schemas import Schemas
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.objects import time_text

# What generated names end with: no vowels, so that they spell nothing.
NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
NAME_SUFFIX_LENGTH: Final = 5


@dataclass(frozen=True, slots=True)
class ServerTools:
    store: ObjectStore
    schemas: Schemas
    clock: Clock
    random: Random
    log: Log

    def now(self) -> datetime:
        return self.clock.now()

    def now_text(self) -> str:
        return time_text(self.clock.now())

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def new_name_suffix(self) -> str:
        return "".join(self.random.choices(NAME_LETTERS, k=NAME_SUFFIX_LENGTH))
