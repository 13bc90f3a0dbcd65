"""Plugins of ours that are not scorers, one file each; found through entry points, as anybody's."""
