"""What tests of every folder share: waiting, leak detection, the running of async tests. No assertions about Orlop."""
