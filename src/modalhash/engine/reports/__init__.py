"""What an engine reports about itself."""
