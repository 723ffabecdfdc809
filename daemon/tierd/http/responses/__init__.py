"""/v1/responses: OpenAI's API for conversations that the server keeps. `routes` is where to begin to read."""
