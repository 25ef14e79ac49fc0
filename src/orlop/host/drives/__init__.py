"""Drives of a node: their files, their disks, how disks are found, formatted, mounted and checked.

Functions block and are plain: the caller runs them in threads. `host/drive_host` is their seam. Not here: the volumes
on a drive, objects of the API server, and decisions about either (driver/persistent).
"""
