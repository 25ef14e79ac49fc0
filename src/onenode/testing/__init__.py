"""Models for tests of the bench, shipped for users' tests too: an API server in memory, fake containers and hosts.

Not here: fakes that the product needs too (orlop/testing), and helpers of single tests (tests/support).
"""
