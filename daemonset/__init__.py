"""How the agent gets into a cluster: manifests, chart, image, alerts."""
