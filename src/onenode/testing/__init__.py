"""Models for tests of the bench, shipped for users' tests too: an API server in memory, fake containers and hosts."""
