"""Whole fleets on loopback: programs, ports, start and end, what people see of them."""
