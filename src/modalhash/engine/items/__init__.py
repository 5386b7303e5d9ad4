"""Items on their way in: from manifests, folders and archives of photos, frames and dicts."""
