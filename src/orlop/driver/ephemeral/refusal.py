"""Why a question about a folder is not answered: a sentence for the person who asked."""

from __future__ import annotations

from typing import Final, Self

from orlop.records.afterlife_report import Why

LONGEST_SENTENCE: Final = 4000


class Refusal(Exception):
    def __init__(self, why: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.why: Why = why

    @classmethod
    def gone(cls, volume_id: str) -> Self:
        """It was there when the question came, and is not now."""
        return cls("not-found", f"The folder of {volume_id} is no longer retained: it was published again, or erased.")


def in_bounds(sentence: str) -> str:
    """It may quote a path, and tenants can make those of any length."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} … {sentence[-half:]}"
