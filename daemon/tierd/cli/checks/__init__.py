"""What `tierd doctor` looks at: each file knows one part of the box."""
