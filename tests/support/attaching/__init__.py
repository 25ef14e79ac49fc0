"""Clusters for the attacher and the attach/detach controller, and their scenarios."""
