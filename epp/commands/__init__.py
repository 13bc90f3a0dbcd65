"""The commands of `epp`, a module each family, and the flags that they share."""
