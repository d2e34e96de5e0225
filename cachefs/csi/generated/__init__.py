"""The messages of CSI 1.13.0 and of the kubelet's plugin registration v1 (of kubelet 0.36.3).

`scripts/csi_stubs.py` generates the stubs. Their sources have the Apache License 2.0: LICENSE.csi
(github.com/container-storage-interface/spec) and LICENSE.registration (k8s.io/kubelet).
"""
