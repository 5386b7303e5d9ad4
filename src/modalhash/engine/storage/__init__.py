"""Folder and store of an engine: layout, adding items, snapshots, backups, verification."""
