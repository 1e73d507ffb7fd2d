"""`lambdanets demo`."""

from typing import Annotated, Any

from pydantic import Field

from lambdanets.cli.options import POSITIONAL, Device, parse
from lambdanets.records import record
from lambdanets.terminal import echo


@record
class Demo:
    """Serve a page on this machine that shows what trained models find in an image, and what lambda layers look at.

    No data leaves the machine.
    """

    models: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Models as for predict; by default all trained models that come with the package."""
    host: str = "127.0.0.1"
    """Address to listen on, or its name; with the default, only this machine can open the page."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7860
    """Port; 0 for any free one."""
    device: Device = None
    open: bool = False
    """Open the page in the browser."""


def main(arguments: list[str]) -> None:
    """Run `lambdanets demo` until a signal."""
    options = parse(Demo, arguments, "demo")
    from lambdanets.inference.loading import load
    from lambdanets.models.weights import packaged_models
    from lambdanets_lab.demo.app import LOOPBACK, serve

    names = options.models or packaged_models()
    models: dict[str, Any] = {name: load(name, device=options.device) for name in names}
    with serve(models, options.host, options.port) as server:
        echo(f"{server.url} shows {', '.join(models)}; press Ctrl-C to stop")
        if options.host not in LOOPBACK:
            echo("everyone who can reach this address can use the page")
        if options.open:
            import webbrowser

            webbrowser.open(server.url)
        server.wait()
