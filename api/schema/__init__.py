"""The reader of request bodies: typed fields, bounds, and the OpenAPI schema of both."""
