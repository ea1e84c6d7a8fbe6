"""What a run adds to the scheduler: news of workers, a veto on closing those with actors, numbers and a page."""

import json
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.http.utils import RequestHandler
from tornado.ioloop import IOLoop

from msd.runtime.dask.watching.view import RunView

LOST_TOPIC = "msd-worker-lost"
CAME_TOPIC = "msd-worker-came"
PAGE = "msd"
"""Of the scheduler's own server, and what it is called in the navigation of Dask's pages."""
SILENT_S = 120.0
"""A run of which nothing was heard for so long is shown no more."""


class RunPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Installed once on each scheduler that hosts a run."""

    name = "msd"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Remember the scheduler, take what runs report, and show it."""
        self._scheduler = scheduler
        self._views: dict[str, RunView] = {}
        scheduler.handlers["msd_report"] = self.report
        scheduler.handlers["msd_end"] = self.end
        _show_numbers(self)
        _add_routes(scheduler, self)

    def views(self) -> list[RunView]:
        """Return the runs that are under way, as far as they said so lately."""
        since_s = time.time() - SILENT_S
        return [view for view in self._views.values() if view.at_s > since_s]

    def report(self, run: str, stats: dict[str, Any], at_s: float) -> None:
        """Take the figures of a run."""
        self._views.setdefault(run, RunView(run)).take(stats, at_s)

    def end(self, run: str) -> None:
        """Take that a run is over."""
        self._views.pop(run, None)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Tell supervisors that a worker is there."""
        state = scheduler.workers[worker]
        scheduler.log_event(CAME_TOPIC, {"worker": worker, "name": str(state.name), "host": str(state.host)})

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Tell everyone who listens that a worker is gone: within about 10 ms of a kill."""
        for client, connection in scheduler.client_comms.items():
            # Who listened in the lost worker: Dask would report as critical that it cannot be told.
            if connection.closed():
                scheduler.unsubscribe_topic(LOST_TOPIC, client)
        scheduler.log_event(LOST_TOPIC, {"worker": worker})

    def valid_workers_downscaling(self, scheduler: Any, workers: Iterable[Any]) -> list[Any]:
        """Return the workers that may be closed: those that hold no actor."""
        return [worker for worker in workers if not worker.actors]

    async def close(self) -> None:
        """Take back what is of the process and not of the scheduler."""
        _SHOWN.discard(self)


class _Api(RequestHandler):  # type: ignore[misc]
    """The newest figures of every run, as JSON."""

    def get(self) -> None:
        plugin = self.server.plugins.get(RunPlugin.name)
        views = [] if plugin is None else plugin.views()
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps({view.name: {"at_s": view.at_s, "stats": view.latest} for view in views}))


_SHOWN: "weakref.WeakSet[RunPlugin]" = weakref.WeakSet()
"""Of all schedulers of this process: one that was never closed, or a second one, is no hindrance to another."""
_registering = threading.Lock()
_is_registered = False


def _show_numbers(plugin: RunPlugin) -> None:
    """Have Dask's /metrics say what runs come to, if it has them: one collector serves all schedulers of a process."""
    global _is_registered
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    from msd.runtime.dask.watching.metrics import Collector

    _SHOWN.add(plugin)
    with _registering:
        if not _is_registered:
            REGISTRY.register(Collector(lambda: [view for shown in list(_SHOWN) for view in shown.views()]))
            _is_registered = True


def _add_routes(scheduler: Any, plugin: RunPlugin) -> None:
    """Add a page and a route to the scheduler's own server, as far as it has one."""
    http = getattr(scheduler, "http_application", None)
    if http is None:
        return
    prefix = _prefix_of(http)
    path = f"/{prefix}/{PAGE}" if prefix else f"/{PAGE}"
    http.add_handlers(r".*", [(rf"{path}/api/?", _Api, {"dask_server": scheduler})])
    try:
        from distributed.dashboard.components.scheduler import BOKEH_THEME, env
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables

        from msd.runtime.dask.watching.page import UPDATE_MS, Page
    except ImportError:
        return  # Without Bokeh there are the numbers, and no page.

    def show(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
        page = Page(plugin.views)
        page.update()
        doc.title = "Dask: msd"
        doc.add_periodic_callback(page.update, UPDATE_MS)
        doc.add_root(page.root)
        doc.template = env.get_template("simple.html")
        doc.template_variables.update(extra)
        doc.theme = BOKEH_THEME

    variables = template_variables(scheduler)
    application = BokehApplication({f"/{PAGE}": show}, scheduler, prefix=prefix, template_variables=variables)
    http.add_application(application)
    application.initialize(IOLoop.current())
    application.start()
    if PAGE not in variables["pages"]:
        # The same list that all of Dask's own pages were given.
        variables["pages"].append(PAGE)


def _prefix_of(http: Any) -> str:
    """Return the path under which a scheduler's pages lie, as a proxy wants it; mostly none."""
    found = [getattr(application, "prefix", None) for application in http.applications]
    return str(next((prefix for prefix in found if prefix), "")).strip("/")
