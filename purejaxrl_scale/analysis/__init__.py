"""Finished runs as tables, figures and pages."""
