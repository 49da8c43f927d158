"""`tidegate demo`: two conversations that share a long system prompt, and what the router and the caches make of it.

The second conversation begins after the first one's first turn: its very first turn already finds the shared prompt
cached, if the router sends it to the worker that has it. Every turn is greedy and short, so that the whole takes
seconds on two cores.
"""

import asyncio
import json
import statistics
from dataclasses import asdict, dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from tidegate_crds.inference_pool import InferencePool
from tidegate_operator.local.launch import LaunchOptions, launch
from tidegate_operator.local.supervisor import Supervisor

from tidegate_cli.console import say
from tidegate_cli.conversation import Answer, ChatClient, Message
from tidegate_cli.errors import ConversationError
from tidegate_cli.up import EXIT_CODES, serve

ANSWER_TOKENS = 16

SYSTEM_PROMPT = """\
You are the friendly assistant of the public library of Port Merrin, a small town on a tidal river. You answer the \
questions of visitors of every age about the world: countries and cities, animals and plants, planets and stars, \
famous people and old stories.

How you answer: Give one short sentence in plain words. Say the most important thing first. Be kind, calm and \
honest. When you do not know something, say so and send the visitor to the information desk on the ground floor. \
Never use lists, headings or emoji, and never repeat the question. Explain every difficult word. When a question has \
more than one answer, choose the one that a teacher would give. When somebody asks about a place, name its country. \
When somebody asks about an animal, say where it lives. When somebody asks about a star or a planet, say how it \
looks from the Earth. When somebody asks about a person, say what the person is known for. When somebody asks about \
the weather, send them to the notice board next to the main entrance. Numbers are written as digits, and lengths in \
metres or kilometres.

About the library: It is open from nine in the morning until six in the evening on every day but Sunday. Children \
read on the first floor, where the fish tank is; the maps and the old newspapers are in the cellar; the reading room \
with the long green tables looks out over the river. A card is free for everybody who lives in the town. Books may \
be kept for four weeks and brought back to any desk, and late books cost nothing as long as nobody else is waiting \
for them. Story hour begins at three on Wednesdays. The quiet rooms can be booked for two hours at the information \
desk."""

QUESTIONS = {
    "A": ("What is the capital of France?", "Which river flows through it?", "What can visitors see there?"),
    "B": ("What is the capital of Japan?", "Which ocean is next to it?", "What do people like to eat there?"),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of the show."""

    conversation: str
    turn: int
    worker: str
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds: float


def run_demo(
    pool: InferencePool, options: LaunchOptions, console: Console, *, once: bool, json_out: TextIO | None
) -> int:
    """Start the pool, hold the conversations and, unless `once`, serve on until Ctrl-C; the exit code.

    `json_out` gets one JSON object after everything has ended (after the conversations when not `once`). Raises
    LocalError when the pool cannot start, ConversationError when an answer is not what it should be.
    """
    started = launch(pool, options)
    wanted, got = pool.spec.router.listen.port, started.plan.router_config.listen.port
    if wanted not in (0, got):
        say(console, f"port {wanted} is in use by another program; this demo takes port {got} instead", "yellow")
    report: list[str] = []

    async def show(supervisor: Supervisor) -> None:
        client = ChatClient(started.plan.endpoint, started.plan.model, ANSWER_TOKENS)
        try:
            turns = await asyncio.to_thread(converse, client, console)
        except ConversationError:
            if supervisor.stopping:
                return
            raise
        summarise(turns, console)
        report.append(json.dumps({"endpoint": started.plan.endpoint, "turns": [asdict(turn) for turn in turns]}))
        if once:
            supervisor.request_stop()
            return
        if json_out is not None:
            print(report.pop(), file=json_out, flush=True)
        say(console, "the pool stays up; Ctrl-C ends it", "dim")

    outcome = serve(started, console, show)
    if outcome.message:
        say(console, f"error: pool {pool.metadata.name}: {outcome.message}", "bold red")
    elif once and not report:
        say(console, "interrupted before the conversations had ended", "yellow")
        return 130
    if once and report and json_out is not None:
        print(report[0], file=json_out, flush=True)
    return EXIT_CODES[outcome.ending]


def converse(client: ChatClient, console: Console) -> list[Turn]:
    """Hold both conversations, turn by turn in alternation; the measured turns in the order they were asked."""
    say(console, "")
    say(console, "Two conversations with the same long system prompt, both through the router:", "bold")
    histories: dict[str, list[Message]] = {name: [{"role": "system", "content": SYSTEM_PROMPT}] for name in QUESTIONS}
    turns: list[Turn] = []
    for number in range(len(next(iter(QUESTIONS.values())))):
        for name, questions in QUESTIONS.items():
            history = histories[name]
            history.append({"role": "user", "content": questions[number]})
            answer = client.ask(history)
            history.append({"role": "assistant", "content": answer.text})
            turns.append(_turn(name, number + 1, answer))
            say(console, f"  {name}{number + 1}  {questions[number]}  → {' '.join(answer.text.split())}", "dim")
    return turns


def _turn(conversation: str, number: int, answer: Answer) -> Turn:
    return Turn(
        conversation=conversation,
        turn=number,
        worker=answer.worker,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ttft_seconds=round(answer.ttft_seconds, 4),
    )


def summarise(turns: list[Turn], console: Console) -> None:
    """A table of the turns, and what caching was worth."""
    table = Table(box=None, pad_edge=True)
    table.add_column("CONVERSATION")
    for column in ("TURN", "WORKER", "PROMPT TOKENS", "CACHED", "TTFT"):
        table.add_column(column, justify="left" if column == "WORKER" else "right")
    for turn in turns:
        table.add_row(
            turn.conversation,
            str(turn.turn),
            turn.worker,
            str(turn.prompt_tokens),
            str(turn.cached_tokens),
            f"{turn.ttft_seconds * 1_000:.0f} ms",
        )
    console.print(table)
    say(console, summary(turns), "bold")


def summary(turns: list[Turn]) -> str:
    """One sentence: TTFT of the very first turn, which nothing could help, against the median of those after it."""
    first, later = turns[0], turns[1:]
    median = statistics.median(turn.ttft_seconds for turn in later)
    prompt = sum(turn.prompt_tokens for turn in later)
    cached = sum(turn.cached_tokens for turn in later)
    share = 100 * cached / prompt if prompt else 0.0
    speedup = first.ttft_seconds / median if median > 0 else 0.0
    return (
        f"TTFT {first.ttft_seconds * 1_000:.0f} ms on the first turn, {median * 1_000:.0f} ms (median) on the turns "
        f"after it: {speedup:.1f} times sooner. {share:.0f}% of their prompt tokens came from a cache."
    )
