"""The persistent half of the driver: volumes on drives, which outlive their pods.

The controller chooses drives and reserves space on them; the node keeps its drives and their volumes. Not here: system
calls (host/), the CSI services themselves (one folder up), and the wiring of a process (processes/).
"""
