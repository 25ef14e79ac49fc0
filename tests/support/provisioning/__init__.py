"""Claims, classes and orders for tests of the provisioner."""
