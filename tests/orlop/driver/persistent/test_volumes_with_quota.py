"""Directory volumes on a kernel that has quotas."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.host.quota_kernel import Console, cases_in, quota_kernel

__all__ = ["quota_kernel"]
CASES = cases_in(Path(__file__).with_name("quota_cases.py"), ("xfs", "ext4"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(600)
def test_on_a_kernel_that_has_quotas(quota_kernel: Console, case: str):
    assert quota_kernel.outcome_of(case) == "PASSED", quota_kernel.text
