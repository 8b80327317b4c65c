"""The GPUs allocated to each pod, from the kubelet's PodResources API.

``client`` calls the API over the kubelet's unix socket, ``wire`` decodes the response, ``watch`` detects changes and
``devices`` maps the device ids of a device plugin to GPUs. The API and its messages:
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto

Before Kubernetes 1.34 ``List`` also names pods that have ended and are not deleted yet. The response does not mark
them, and this agent may not read pods: they are published, and readers of ``NodeGpus`` that watch pods leave out those
in phase Succeeded or Failed. Devices of Dynamic Resource Allocation are not in the list and are not read.
"""
