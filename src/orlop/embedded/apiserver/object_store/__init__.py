"""The storage behind the embedded API server (the part etcd has in Kubernetes).

versions          keys, versions of objects, changes, decisions, limits (pure)
errors            what is raised
store             guarded writes, reading, watching, closing; the store that ends with its process
object_table      all objects as they are now (pure data)
watch_history     the changes that are kept (pure data)
watches           telling those who watch
arrivals          waiting for a revision
commit_queue      many writers, one commit
journal           the seam to what makes changes durable, and the one that does not
database_journal  the one that does, in a thread of its own; the store that lasts
database          SQLite
database_mark     what is known to be in the database, so that a loss is noticed
log_rules         whether SQLite's log was damaged (pure)
database_files    the files, their modes and their lock
decoded_objects   the last objects that were looked into, as Python values
"""
