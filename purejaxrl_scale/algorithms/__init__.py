"""Losses, and the improvement of a policy from a trajectory."""
