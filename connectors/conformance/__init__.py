"""The conformance suite of connectors, for any adapter: see docs/connectors.md. Needs pytest."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("connectors.conformance.reading", "connectors.conformance.writing")
