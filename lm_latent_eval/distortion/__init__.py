"""Noise channels: texts made worse by a known amount."""
