"""`epp serve --workers N`: several replicas behind one set of ports.

Each worker is a replica in a process of its own. All of them listen on the ext_proc port, where the
system deals connections out; the first one hosts the embedded store for all (`epp.state.mates`).
The host, which is the process that was started, decides nothing: it starts workers again that end,
answers health checks, and shows the pages of all workers as one.
"""
