"""Attach and detach the volumes of any CSI driver that needs it, by its Controller service.

`attachment_controller` watches and queues; a handler does the work: `attach_handler`, or `trivial_handler` for a driver
that cannot attach. What they decide is in the `*_rules`. How the process is built is in `processes/attacher`.

Not here: anything that only Orlop's own driver does.
"""
