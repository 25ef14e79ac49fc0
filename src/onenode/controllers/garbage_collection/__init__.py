"""The garbage collector: deletes objects whose owners are gone, and completes foreground and orphan deletions.

Must not know any kind: it reads metadata alone.
"""
