"""The processes of one machine as `ps` shows them: `orlop up`, `orlop apiserver`, and their wiring from settings.

Not here: decisions, and what the parts do; an `if` here is about a setting.
"""
