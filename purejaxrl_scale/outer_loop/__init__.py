"""The outer loop as stochastic optimisation: what it is measured by, and what moves its step and its noise."""
