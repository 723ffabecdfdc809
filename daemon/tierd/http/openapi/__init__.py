"""/openapi.json, and the table of routes that it is made from."""
