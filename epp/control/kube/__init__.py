"""Kubernetes as the source of a pool: who is a member, and what is declared of requests.

`access` says where the API server is and who we are, `reflector` keeps one list of objects as the
server has it (`reflection` decides, without I/O), `objects` reads what matters of each, and
`membership` makes endpoints of pods. `cluster` puts them together.
"""
