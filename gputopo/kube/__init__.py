"""The API server: the only package that calls it.

    rbac            the roles: which part of gputopo may call what
    connect         credentials -> a ``Kube`` (``client``) with a role
    objects         the fields of objects that gputopo reads
    ownership       managedFields: the owners of labels and annotations
    events, errors  bodies of Events; error classes
    reflector       list and watch of a kind; ``watch_stream``: its events; ``projection``: the values that are kept

Importing the package loads none of these modules: the HTTP client costs 0.7 s.
"""
