"""Rails: the large matmuls of a model's layers on a device through Kompute, all the rest on the host."""
