"""The storage behind the one-machine API server (the part etcd has in Kubernetes).

versions          keys, versions of objects, changes, decisions, limits; objects as Python values
store_errors      what is raised
store             guarded writes, reading, watching, closing; the store that ends with its process
object_history    all objects as they are now, and the newest changes (pure data)
watches           watches, and waiting for a revision
commit_queue      many writers, one commit
journal           the seam to what makes changes durable, and the one that does not
durable_store     the journal that does, in a thread of its own, and the store that lasts
database          SQLite
history_log_rules whether SQLite's log was damaged (pure)
database_files    the files, their modes, their lock, and the mark by which a loss is noticed
"""
