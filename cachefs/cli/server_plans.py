"""The specs of a source and of its embedded server, made from the settings."""

from __future__ import annotations

from cachefs.cli import clusters
from cachefs.core.addresses import is_cluster
from cachefs.core.config import Config
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ServerSpec
from connectors.registry import check_options, known_options, normalise


def source_spec(source: str, chosen: Config) -> UfsSpec:
    """Returns the source with its options. Options of other schemes are dropped unless a flag sets
    them. Raises BadConfig."""
    if is_cluster(source):
        return clusters.source_spec(source, chosen)
    url = normalise(source)
    options = chosen.source_options(keep=known_options(url))
    spec = UfsSpec(url, options)
    check_options(spec)
    return spec


def server_spec(ufs: UfsSpec, home: str, chosen: Config, *, foreground: bool) -> ServerSpec:
    """Returns the embedded server of a source."""
    return ServerSpec(
        home=home,
        source=ufs,
        cache_dir=chosen.text("cache_dir"),
        cache_size_bytes=chosen.integer("cache_size"),
        memory_limit_bytes=chosen.integer("memory_limit"),
        metrics=chosen.text("metrics"),
        admin_socket=chosen.text("admin_socket"),
        sync_interval_s=chosen.seconds("sync_interval"),
        background_listings=chosen.integer("background_listings"),
        admission=chosen.text("admission"),
        eviction=chosen.text("eviction"),
        idle_after_s=chosen.seconds("idle_after"),
        files_ahead=chosen.integer("files_ahead"),
        origin_deadline_s=chosen.seconds("origin_deadline"),
        log_level=chosen.text("log_level"),
        log_to_stderr=foreground,
        trust_directories=clusters.trusts(chosen),
    )
