"""The relay of the sidecar on raw asyncio protocols.

`requests`, `answers` and `framing` read and write HTTP/1.1 and do no I/O; `clients`, `engines` and
`server` move bytes and decide nothing about HTTP.
"""
