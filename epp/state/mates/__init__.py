"""Workers of one picker share the embedded store: the first of them hosts it for the others.

The first worker's `Hub` listens on a Unix socket for the others' `Link`s. Records that sidecars
send go down each line as they came; the reserved sums of each worker go up, and everybody's come
down. With a store of its own (Redis) workers are replicas like any others, and need none of this.
"""
