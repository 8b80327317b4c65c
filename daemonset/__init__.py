"""Installation in a cluster: manifests, chart, image, alerts."""
