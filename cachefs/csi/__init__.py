"""The CSI node driver: it mounts, deposits in the node's holder, and binds into pods. No package of
the command line imports it before `cachefs csi` runs: it needs the extra `csi`."""
