"""The processes of one machine as `ps` shows them: `orlop up`, `orlop apiserver`, and their wiring from settings."""
