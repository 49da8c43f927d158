"""`tidegate-worker`: serve one model."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tidegate_worker.engine.settings import EngineSettings
from tidegate_worker.flags import (
    build_parser,
    default_served_name,
    engine_settings,
    scheduler_settings,
    server_settings,
)
from tidegate_worker.model.errors import ModelError
from tidegate_worker.model.uri import ModelFiles, needs_network, resolve_model
from tidegate_worker.server.outside import say

if TYPE_CHECKING:
    from tidegate_worker.server.text_codec import TextCodec


@dataclass
class _Model:
    """A model on its way from URI to engine; found once, for engine and tokenizer alike."""

    settings: EngineSettings
    files: ModelFiles | None = field(default=None, init=False)

    def find(self) -> EngineSettings:
        self.files = self.files or resolve_model(self.settings.model_uri)
        return msgspec.structs.replace(self.settings, model_uri=str(self.files.path))

    def codec(self) -> "TextCodec":
        from tidegate_worker.server.model_codec import load_codec

        return load_codec(self.files or resolve_model(self.settings.model_uri))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code; see `tidegate_worker.server.lifecycle`."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    model = _Model(engine_settings(options, scheduler_settings(parser, options)))
    server = server_settings(options, default_served_name(options.model))
    try:
        if not needs_network(options.model):
            model.find()  # before the imports of a whole server: a misspelt path is told at once
    except ModelError as error:
        say(str(error))
        return 2
    from tidegate_worker.server.lifecycle import ModelSource, run

    return run(server, ModelSource(model.find, model.codec))


if __name__ == "__main__":
    sys.exit(main())
