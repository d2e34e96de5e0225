"""The controller of data sets in Kubernetes: `cachefs operator`."""
