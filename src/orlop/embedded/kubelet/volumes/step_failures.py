"""How a step of an operation fails: what is told, and what is known afterwards."""

from __future__ import annotations

from orlop.csi.error_codes import Code, CsiError
from orlop.embedded.kubelet.volumes.outcome_rules import DEADLINE_TEXT, Failure, call_text, failure_of_call


class StepFailed(Exception):
    """`prefix` names the step in kubelet's words, `why` tells the reason; neither holds a secret."""

    def __init__(self, prefix: str, why: str, failure: Failure = Failure.TRANSIENT, code: Code | None = None) -> None:
        super().__init__(f"{prefix}: {why}")
        self.prefix = prefix
        self.why = why
        self.failure = failure
        self.code = code
        """Of the driver's answer, where there was one."""


class NotPrepared(StepFailed):
    """Nothing was begun: it is looked at again soon, nobody is told, and no delay grows."""


def failed_call(prefix: str, error: CsiError | TimeoutError, asking: str = "") -> StepFailed:
    """The client has taken the secrets of the request out of the driver's message already."""
    why = call_text(error) if isinstance(error, CsiError) else DEADLINE_TEXT
    code = error.code if isinstance(error, CsiError) else None
    return StepFailed(prefix, f"{asking}{why}", failure_of_call(error), code)
