"""An engine's folder and store: layout, adding items, snapshots, backups, verification."""
