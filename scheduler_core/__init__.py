"""The cluster side: filters, scores and places GPU pods beside the stock kube-scheduler."""
