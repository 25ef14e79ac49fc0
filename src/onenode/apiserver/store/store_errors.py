"""What the object store raises.

StoreError
  ObjectExists         a create met an object
  NoSuchObject              an update or a deletion met none
  RevisionConflict              the newest version is not the one that was expected
  Expired               the revision asked for is no longer kept
  NotReached            the revision asked for does not exist yet
  TooSlow               a watch was cut because nobody read from it
  DiskFull              the disk has no room for a commit; what only deletes or shrinks may still have
  WriteFailed           the commit failed: this write, and each one built upon it
  StoreClosed           the store has been closed
  StoreUnusable         the state folder or the database in it cannot be used; it was left as it is
    StoreInUse          another process uses it
"""

from __future__ import annotations

from onenode.apiserver.store.versions import Key


class StoreError(Exception):
    pass


class ObjectExists(StoreError):
    def __init__(self, key: Key) -> None:
        super().__init__(f"{key} already exists")
        self.key = key


class NoSuchObject(StoreError):
    def __init__(self, key: Key) -> None:
        super().__init__(f"{key} is not found")
        self.key = key


class RevisionConflict(StoreError):
    def __init__(self, key: Key, expected: int, newest: int) -> None:
        super().__init__(f"{key} was expected at revision {expected}, but its newest version is {newest}: read it anew")
        self.key = key
        self.expected = expected
        self.newest = newest


class RevisionExpired(StoreError):
    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"revision {asked} is no longer kept, the oldest is {oldest}: list anew and go on from there")
        self.asked = asked
        self.oldest = oldest


class FutureRevision(StoreError):
    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"revision {asked} does not exist yet, the newest is {current}: wait for it first")
        self.asked = asked
        self.current = current


class TooSlow(StoreError):
    def __init__(self, unread: int) -> None:
        super().__init__(f"the watch was cut with {unread} changes unread: begin a new one behind the last one read")
        self.unread = unread


class DiskFull(StoreError):
    def __init__(self) -> None:
        super().__init__("the disk is full: delete objects, or make room on it")


class WriteFailed(StoreError):
    def __init__(self, key: Key, reason: BaseException) -> None:
        super().__init__(f"the change of {key} could not be made durable: {reason}")
        self.key = key
        self.reason = str(reason)


class StoreClosed(StoreError):
    def __init__(self) -> None:
        super().__init__("the object store has been closed: nothing more can be written or watched")


class StoreUnusable(StoreError):
    pass


class StoreInUse(StoreUnusable):
    pass
