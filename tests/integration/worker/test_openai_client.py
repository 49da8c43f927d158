import openai_contract
from sim_worker_process import sim_worker


def test_the_openai_client_works_unchanged_with_a_worker() -> None:
    with sim_worker("--served-name", "sim", "--served-name", "alias") as worker:
        openai_contract.exercise(worker.url + "/v1", "sim")
        openai_contract.exercise(worker.url + "/v1", "alias")
