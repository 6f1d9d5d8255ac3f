"""Compression of gradients before they are sent."""
