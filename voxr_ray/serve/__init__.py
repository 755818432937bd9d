"""The deployments: routers that speak HTTP, replicas that hold an engine, and the transport between them."""
