"""Slow, obvious float64 transcriptions of the papers' equations, written for reading."""
