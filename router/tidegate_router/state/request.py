"""`Request`: what a front understood of a client's request, parsed once, immutable afterwards."""

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One inference request as routing sees it; the body travels untouched beside it."""

    id: str
    """`x-request-id`, the client's or minted."""
    api: str
    """Path without query: `/v1/chat/completions`, `/v1/completions`, …"""
    model: str
    adapter: str = ""
    salt: str = ""
    """`cache_salt` of the body: prompts of different salts never share a prefix."""
    head: bytes = b""
    """Raw JSON of `tools`; the head of the prompt, before the messages."""
    messages: bytes = b""
    """Raw JSON of `messages` or `prompt`, the text that the prefix index hashes."""
    prompt_tokens_estimate: int = 0
    max_tokens: int = 0
    """0: the client set none."""
    stream: bool = False
    wants_usage: bool = False
    session: str = ""
    parent_session: str = ""
    tenant: str = ""
    priority: int = 0
    slo_ttft_ms: int = 0
    slo_tpot_ms: int = 0
    deadline: float = 0.0
    """Loop time; 0 is none."""
    body: bytes = b""
