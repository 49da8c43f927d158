"""The wire between router, workers and clients: telemetry protobuf, OpenAI errors, SSE frames, block hashes.

Pure: nothing here opens a socket, reads a clock or keeps state. Router and worker both import it; it imports neither.
"""
