"""transformers as a measured peer, in a process of its own: reads one JSON command a line, answers one line each.

Run as `python -m bench.engine_peer GGUF_DIRECTORY GGUF_FILE THREADS`. A command is `{"prompts": [[ids]], "tokens": n}`,
prompts of one length; the answer `{"seconds": s}` is the time of one batched greedy `generate` of exactly n new tokens.
"""

import json
import sys
import time
from typing import Any

import torch
import transformers


def main(directory: str, file: str, threads: int) -> None:
    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        prompts = torch.tensor(command["prompts"])
        started = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=command["tokens"],
                pad_token_id=0,
            )
        seconds = time.perf_counter() - started
        if output.shape[1] != prompts.shape[1] + command["tokens"]:
            raise SystemExit("the peer stopped early")
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
