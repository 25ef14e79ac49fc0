"""A click parameter type for durations, in seconds: Go's format, optionally with days first, such as 2d12h."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from orlop.foundation.duration import Duration, InvalidDuration

_DAYS: Final = re.compile(r"^([0-9]{1,6})d")


class DurationType(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            seconds = Duration.parse(_DAYS.sub(lambda days: f"{int(days[1]) * 24}h", value)).seconds
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} is too short: it must be more than 0s, such as 15s or 2h", param, ctx)
        return seconds
