"""Traces: where a request stands in one, what was done for it, and how that is told.

`context` and `spans` are pure; `queue` keeps what is to be sent, and `otlp` sends it through
OpenTelemetry, which is loaded only where traces are asked for.
"""
