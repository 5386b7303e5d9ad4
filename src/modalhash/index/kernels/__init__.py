"""Compiled loops over packed codes. README.md next to this file explains the layouts."""
