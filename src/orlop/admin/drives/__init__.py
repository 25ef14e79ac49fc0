"""The work of the commands for drives and volumes: lists, changes of spec, requests to nodes, adoption.

Not here: the decisions of nodes and of the controller (driver/persistent), and the output (cli/).
"""
