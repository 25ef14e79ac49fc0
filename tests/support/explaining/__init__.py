"""Clusters for `orlop explain`: an API server in memory with a few objects, and the verb that reads them."""
