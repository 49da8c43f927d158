"""What can be wrong with a model, as errors that a person can act on.

ModelError                 the operator's to mend; the message says what to change
├── ModelNotFoundError     the URI leads nowhere: file, directory, package, hub
├── ModelFormatError       the files are there but truncated, corrupt or inconsistent
├── UnsupportedModelError  the files are sound but of a kind this worker cannot run
├── TokenizerError         no tokenizer, or one that cannot be built
└── ModelResourceError     the machine or the settings leave too little room
ChatTemplateError          one request's messages do not fit the chat template (HTTP 400)
"""


class ModelError(Exception):
    """A model that cannot be served as asked; the message names the remedy."""


class ModelNotFoundError(ModelError):
    """Nothing at this URI."""


class ModelFormatError(ModelError):
    """The files exist but cannot be read as what they claim to be."""


class UnsupportedModelError(ModelError):
    """A sound model of a kind this worker does not run."""


class TokenizerError(ModelError):
    """The model's tokenizer is missing or cannot be built."""


class ModelResourceError(ModelError):
    """Weights or KV cache do not fit the memory or the settings given."""


class ChatTemplateError(ValueError):
    """Messages that the chat template refuses: the request is at fault, not the model."""
