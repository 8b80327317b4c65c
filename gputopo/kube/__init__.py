"""The only place that talks to the API server.

``access`` says who may do what, ``connect`` opens a ``Kube`` (``client``) in such a role, ``objects`` are the fields
that are read, ``ownership`` who owns them, ``events`` what people are told, ``errors`` what can go wrong. A
``reflector`` keeps a kind in view: a ``stream`` brings what happens, a ``reduction`` keeps what matters of each object.
Importing this package alone loads none of it: what speaks HTTP costs 0.7 s.
"""
