"""The `openai` client, unchanged, through the router: the contract that the worker passes alone."""

from openai_contract import exercise
from router_process import RouterProcess
from sim_worker_process import sim_worker


def test_the_openai_client_works_through_the_router() -> None:
    with sim_worker() as one, sim_worker() as two, RouterProcess([one.url, two.url]) as router:
        exercise(f"{router.url}/v1", "sim")
        router.assert_idle()
        router.assert_clean_log()
