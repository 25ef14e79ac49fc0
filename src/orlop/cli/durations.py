"""A duration as a parameter of a command: Go's form, in seconds."""

from __future__ import annotations

from typing import Any

import click

from orlop.foundation.duration import Duration, InvalidDuration


class DurationType(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            seconds = Duration.parse(value).seconds
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} is too short: it has to be more than 0s, such as 15s or 2h", param, ctx)
        return seconds
