"""Experiments that settings were chosen by."""
