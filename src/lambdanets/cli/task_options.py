"""Options of the commands on trained models: those in common, and those of the model's task, from the registry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lambdanets.cli.options import parse_all
from lambdanets.errors import InputError
from lambdanets.registry import find, installed_tasks


@dataclass(frozen=True)
class ModelCommand:
    """A command on a trained model.

    name: such as "predict"; the registry has the options that each task adds as predict_options. common: record of the
    options of all tasks, of which the first is the model.
    """

    name: str
    common: type[Any]
    description: str

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options in common, before PyTorch is imported, which takes seconds."""
        kinds = self._kinds()
        if arguments and not arguments[0].startswith("-") and not {"-h", "--help"}.isdisjoint(arguments):
            kinds = {"": kinds[_task_of(arguments[0])]}
        return self._parse(arguments, dict.fromkeys(kinds.values()))[0]

    def parse_for(self, task: str, arguments: Sequence[str]) -> Any:
        """Return the options of a model's task. Raises InputError for those that only other tasks have."""
        kinds = self._kinds()
        for flag in (word.partition("=")[0] for word in arguments if word.startswith("--")):
            name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
            having = [each for each in dict.fromkeys(kinds.values()) if name in each.__annotations__]
            if having and not issubclass(kinds[task], tuple(having)):
                tasks = " and ".join((each.__doc__ or "").rstrip(".").lower() for each in having)
                raise InputError(f"{flag} is an option of {tasks}, not of this model; remove it")
        return self._parse(arguments, (kinds[task],))[1]

    def _kinds(self) -> dict[str, type[Any]]:
        return {task: find(getattr(entry, f"{self.name}_options")) for task, entry in installed_tasks().items()}

    def _parse(self, arguments: Sequence[str], kinds: Any) -> list[Any]:
        prog = f"lambdanets {self.name}"
        return parse_all((self.common, *kinds), arguments, prog=prog, description=self.description)


def _task_of(model: str) -> str:
    from lambdanets.inference.loading import read_model
    from lambdanets.models.weights import find_weights

    return read_model(find_weights(model))[1].task
