"""Writes docs/configuration.md from the table of settings: `python -m cachefs.cli.config_page`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from cachefs.core import config
from cachefs.core.setting import CLIENT_COMMANDS

ASKERS_SHOWN: Final = ", ".join(f"`{name}`" for name in CLIENT_COMMANDS if " " not in name)
PAGE: Final = f"""# Configuration

Made from `cachefs/core/settings.py` by `python -m cachefs.cli.config_page`; a test compares them.

Values come from, weakest first: defaults, configuration files, environment variables, flags.
`cachefs config --source` shows every value and where it came from. Configuration files are TOML
with the settings as top-level keys (`cache_size = "200GiB"`). The file named by `--config`, or by
`${config.CONFIG_ENV}`, is the only one read; otherwise `{config.SYSTEM_FILE}` and then
`~/.config/cachefs/cachefs.toml` are read where they exist. An unknown key is an error.

Sizes are written as `512MiB`, `20GiB` or `1TB`, durations as `60s`, `1h30m`, `0` or `-1`, modes as
octal digits in quotes (`"644"`). In `/etc/fstab` and `mount -o` every setting is an option of the
same name (`cache_size=20GiB` or `cache-size=20GiB`; a switch alone means yes). A list is written as
`["a", "b"]` in TOML, with `;` in a variable, and as a flag that is given again.

Credentials are never settings: they come from the store's default chain (environment, profile, web
identity, instance role) of whoever starts the server of a source, that is, of its first mount.

Flags are named with the commands that accept them; without a name, `mount` accepts the flag. Client
commands send requests to a master, its workers or a mount's server: {ASKERS_SHOWN}.
A flag of a group (`jobs`, `policy`, `ufs`, `workers`) may stand before or after the name of the
group's command.

{config.markdown_table()}"""


def main() -> int:
    """Writes the page (default: docs/configuration.md below the working directory)."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/configuration.md")
    target.write_text(PAGE, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
