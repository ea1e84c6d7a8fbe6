"""Look at data and say what it is: the first five minutes with one's own folder."""

from msd.look.look import Finding, Look, init, look
from msd.look.recipe import render_yaml

__all__ = ["Finding", "Look", "init", "look", "render_yaml"]
