"""Items read from manifests, folders and archives of photos, frames and dicts."""
