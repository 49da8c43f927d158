"""`model-filter`: only endpoints that may serve the requested model. Always on."""

from tidegate_router.state.endpoints import Endpoint


class ModelFilter:
    """An endpoint whose list is unknown may serve anything; one that answered 404 for a model does not serve it."""

    def keeps(self, endpoint: Endpoint, model: str) -> bool:
        return not model or endpoint.may_serve(model)
