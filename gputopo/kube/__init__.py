"""The only place that talks to the API server.

``access`` says who may do what, ``connect`` opens a ``Kube`` (``client``) in such a role, ``objects`` are the fields
that are read, ``ownership`` who owns them, ``errors`` what can go wrong. Importing this package alone loads none of it:
what speaks HTTP costs 0.7 s.
"""
