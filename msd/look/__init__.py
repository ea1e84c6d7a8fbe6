"""Look at data and say what it is: the first five minutes with one's own folder."""

from msd.look.look import Finding, Look, assumptions, init, look
from msd.look.recipe import render_yaml

__all__ = ["Finding", "Look", "assumptions", "init", "look", "render_yaml"]
