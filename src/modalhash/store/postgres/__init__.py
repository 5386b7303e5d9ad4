"""A store in a schema of a PostgreSQL database, which processes on several machines share."""
