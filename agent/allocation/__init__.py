"""Which pod holds which GPU, as the kubelet's PodResources API tells it.

``client`` asks over the kubelet's unix socket, ``wire`` decodes what it answers, ``watch`` decides what of that is news
and ``devices`` turns a device plugin's ids into GPUs. The API and its messages:
https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto

Before Kubernetes 1.34 ``List`` also names pods that have ended and are not deleted yet. Nothing in the answer tells
them apart, and this agent may not read pods: they are passed on, and the reader of ``NodeGpus``, who watches pods,
leaves out those that the API server calls Succeeded or Failed. Devices that Dynamic Resource Allocation gave out are
not in the list of a device plugin's resources and are not read.
"""
