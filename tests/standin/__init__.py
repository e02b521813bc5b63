"""A stand-in for a vLLM server: a real process on real sockets, without a model."""
