"""What several benchmarks share: processes and what they use, access to an API server, sidecars compared by turns."""
