"""Load through `wrk`: chat completions that share system prompts, and what came back of them."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.instant_backends import MODEL, completion
from bench.processes import BenchError, pinned

BACKENDS = 4
GROUPS = 64  # system prompts, each with many different tails
SHARED_PERCENT = 70  # of a prompt's bytes that is the system prompt

_SCRIPT = """\
local size, count, groups, shared, check = {size}, {count}, {groups}, {shared}, {check}
local words = {{"river", "gate", "tide", "stone", "paper", "engine", "cloud", "green", "answer", "mountain",
               "token", "harbour", "silver", "window", "letter", "garden", "signal", "copper", "winter", "bridge"}}

local function text(seed, bytes)
  local state, parts, length = seed * 2654435761 % 4294967296, {{}}, 0
  while length < bytes do
    state = (state * 1664525 + 1013904223) % 4294967296
    local word = words[math.floor(state / 65536) % #words + 1]
    parts[#parts + 1] = word
    length = length + #word + 1
  end
  return string.sub(table.concat(parts, " "), 1, bytes)
end

local requests, position = {{}}, 0
answers, wrong, backend0, backend1, backend2, backend3 = 0, 0, 0, 0, 0, 0

function init(args)
  local headers = {{["Content-Type"] = "application/json"}}
  local systems = {{}}
  for group = 1, groups do systems[group] = text(group, shared) end
  for index = 1, count do
    local tail = string.format("%d ", index) .. text(1000000 + index, size - shared - 8)
    local body = '{{"model":"{model}","messages":[{{"role":"system","content":"' .. systems[index * 37 % groups + 1]
      .. '"}},{{"role":"user","content":"' .. tail .. '"}}],"max_tokens":16}}'
    requests[index] = wrk.format("POST", "/v1/chat/completions", headers, body)
  end
end

function request()
  position = position % count + 1
  return requests[position]
end

if check then
  function response(status, headers, body)
    answers = answers + 1
    local backend = string.match(body, '"id":"backend%-(%d)"')
    if status ~= 200 or #body ~= {answer_bytes} or backend == nil then
      wrong = wrong + 1
    elseif backend == "0" then backend0 = backend0 + 1
    elseif backend == "1" then backend1 = backend1 + 1
    elseif backend == "2" then backend2 = backend2 + 1
    elseif backend == "3" then backend3 = backend3 + 1
    end
  end
end

local threads = {{}}
function setup(thread) threads[#threads + 1] = thread end

function done(summary, latency, _requests)
  local t, errors = threads[1], summary.errors
  io.write(string.format('RESULT {{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"socket_errors":%d,'
    .. '"status_errors":%d,"answers":%d,"wrong":%d,"by_backend":[%d,%d,%d,%d]}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.timeout, errors.status,
    t:get("answers"), t:get("wrong"),
    t:get("backend0"), t:get("backend1"), t:get("backend2"), t:get("backend3")))
end
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of load. `prompt_bytes` is the text of all messages of a request; `prompts` differ from each other."""

    name: str
    prompt_bytes: int
    prompts: int
    connections: int


SMALL = Case("2KB", 2_048, 16_384, 32)
LARGE = Case("64KB", 65_536, 512, 16)
LONE = Case("latency", 2_048, 4_096, 1)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What wrk saw. `by_backend` is counted in checked runs only."""

    requests: int
    duration_us: int
    p50_us: int
    p99_us: int
    socket_errors: int
    status_errors: int
    answers: int
    wrong: int
    by_backend: tuple[int, ...]

    @property
    def requests_per_second(self) -> float:
        return self.requests / (self.duration_us / 1e6)

    @property
    def largest_share(self) -> float:
        """Share of the answers that came from the busiest backend: 0.25 is even, 1.0 is one backend only."""
        return max(self.by_backend) / max(1, sum(self.by_backend))


class Wrk:
    """Runs wrk on one core and reads its figures."""

    def __init__(self, *, core: int | None, folder: Path) -> None:
        self._core = core
        self._folder = folder

    def run(self, case: Case, url: str, *, seconds: float, check: bool = False) -> LoadResult:
        """Load `url` for `seconds` (whole seconds, at least one). BenchError when wrk fails or an answer was wrong.

        With `check` every answer's body is looked at, which slows wrk: use it for warm-up, never for a figure.
        """
        script = self._folder / f"{case.name}{'-check' if check else ''}.lua"
        script.write_text(
            _SCRIPT.format(
                size=case.prompt_bytes,
                count=case.prompts,
                groups=GROUPS,
                shared=case.prompt_bytes * SHARED_PERCENT // 100,
                check="true" if check else "false",
                model=MODEL,
                answer_bytes=len(completion(0)),
            ),
        )
        load = ["-t1", f"-c{case.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
        command = [*pinned(self._core), "wrk", *load, "-s", str(script), url]
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        for line in finished.stdout.splitlines():
            if line.startswith("RESULT "):
                return _checked(case, json.loads(line.removeprefix("RESULT ")))
        raise BenchError(f"wrk gave no figures:\n{finished.stdout}{finished.stderr}")


def _checked(case: Case, figures: dict[str, int]) -> LoadResult:
    result = LoadResult(**{**figures, "by_backend": tuple(figures["by_backend"])})  # type: ignore[arg-type]
    if not result.requests or result.socket_errors or result.status_errors or result.wrong:
        raise BenchError(
            f"{case.name}: {result.requests} answers, of them {result.status_errors} not 2xx and {result.wrong} with "
            f"a wrong body; {result.socket_errors} socket errors",
        )
    return result
