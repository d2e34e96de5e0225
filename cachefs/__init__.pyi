"""The types of the package: its functions are imported at their first use."""

from cachefs.library.api import close as close
from cachefs.library.api import open as open
from cachefs.library.api import tree as tree

__version__: str
