"""The kinds in a cluster file of ``--from``. Imports nothing: ``--help`` names them."""

CLUSTER_FILE_KINDS = "nodes,pods,nodegpus,leases,placementreservations,placementledgers"
