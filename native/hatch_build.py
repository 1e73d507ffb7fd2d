"""Compiles the native engine for the wheel and for editable installations; without a compiler both are pure Python.

LAMBDANETS_PLATFORM names another platform of libraries.py than that of the build, or "any" for pure Python;
native/wheels.py sets it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # the hook is loaded from its path

from libraries import build_libraries, compilers, platform_of_this_machine


class NativeBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        output = Path(self.root, "src/lambdanets/ops/position/libraries")
        shutil.rmtree(output, ignore_errors=True)
        other = os.environ.get("LAMBDANETS_PLATFORM")
        platform = other or platform_of_this_machine()
        if platform in (None, "any"):
            return
        output.mkdir()
        with tempfile.TemporaryDirectory() as folder:
            for compiler, is_zig in compilers(platform, only_zig=bool(other)):
                try:
                    build_libraries(compiler, is_zig, platform, Path(folder), output)
                    break
                except (OSError, subprocess.CalledProcessError) as error:
                    output_of_compiler = getattr(error, "stderr", b"") or b""
                    self.app.display_warning(
                        f"{' '.join(compiler)}: {error} {output_of_compiler.decode(errors='replace')}"
                    )
            else:
                shutil.rmtree(output)
                if other:
                    self.app.abort(f"the engine must be compiled for {other}, which needs the package ziglang")
                self.app.display_warning("no C compiler could compile the native engine: lambdanets is slower on CPUs")
                return
        # That of this machine, whose pip would not install a tag of libraries.py if it has musl.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{other or system}"
