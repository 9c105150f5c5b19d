"""What llama.cpp can refuse or fail at, by name. Each message is one line that says what to do."""

from __future__ import annotations


class NativeError(Exception):
    """Base of everything that goes wrong below the engine."""


class LibraryMissing(NativeError):
    """The binding is not installed or its shared library does not load."""


class ModelError(NativeError):
    """Base: this model can't be used."""


class ModelNotFound(ModelError):
    """There is no readable file at the path."""


class ModelInvalid(ModelError):
    """The file is not a GGUF, is truncated, or llama.cpp refused it."""


class ModelUnsupported(ModelError):
    """A valid GGUF of a kind this version can't serve (an encoder, an adapter)."""


class LoadCancelled(ModelError):
    """The progress callback asked to stop."""


class ContextError(NativeError):
    """Base: a context could not be made or used."""


class ContextTooLarge(ContextError):
    """llama.cpp could not reserve the memory for the context."""


class ContextInvalid(ContextError):
    """A context's parameters are not what llama.cpp knows, or it has no use for them."""


class AdapterInvalid(ContextError):
    """A LoRA adapter is not there, is damaged, or was made for another model."""


class SequenceIdInvalid(ContextError):
    """A sequence id outside [0, n_seq_max): llama.cpp accepts some of these in silence and aborts on others."""


class NoRoom(ContextError):
    """llama_decode found no free cells for the batch (return code 1). The context is unchanged."""


class DecodeAborted(ContextError):
    """llama_decode was stopped by the abort callback (return code 2). Whole ubatches may remain."""


class BatchInvalid(ContextError):
    """llama_decode refused the batch (return code -1). The context is unchanged."""


class DecodeFailed(ContextError):
    """llama_decode failed inside (return code < -1). The context's content can't be trusted."""


class CutImpossible(ContextError):
    """This memory can't drop a part of a sequence (recurrent, hybrid)."""


class SequenceWrong(ContextError):
    """A sequence does not hold the positions it should; llama.cpp would decode on it all the same."""


class StateExportFailed(ContextError):
    """llama.cpp wrote another number of bytes than it announced."""


class StateImportFailed(ContextError):
    """llama.cpp did not take the whole blob, or the sequence it left is not the one expected.

    The target sequence is empty afterwards."""


class StateLayoutUnknown(ContextError):
    """A state blob is not laid out as expected, so it can't be cut, or holds other positions."""


class TokenizeFailed(NativeError):
    """llama.cpp could not tokenize or detokenize this input."""


class SamplerInvalid(NativeError):
    """llama.cpp refused a sampler's parameters."""


class GrammarInvalid(SamplerInvalid):
    """A grammar, JSON schema or pattern can't be read, or can't be enforced."""


class BegunOtherwise(GrammarInvalid):
    """The part of the reply that is written already is not how the constraint lets one begin."""
