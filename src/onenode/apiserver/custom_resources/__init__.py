"""Kinds that CustomResourceDefinitions declare: their schemas, what is made of their objects, and which are served.

No verb and no storage is here: the verbs store and answer custom resources as they do every other kind.
"""
