"""Keeps the tests of a real Kubernetes node out of the other tests: `make kube` runs them, in
namespaces of their own."""

from __future__ import annotations

import os

from tests.kube.real.namespaces import INSIDE

collect_ignore = [] if os.environ.get(INSIDE) else ["real"]
