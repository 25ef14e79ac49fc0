"""Both ends of CSI and of gRPC for tests."""
