"""One page about runs, to be opened in a browser: nothing on it is loaded from elsewhere."""

from .page import write_html
from .view import RunView, view

__all__ = ["RunView", "view", "write_html"]
