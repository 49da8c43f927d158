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

ANSWER_TOKENS = 20

SYSTEM_PROMPT = """\
You are the harbour assistant of Port Merrin, a small fishing town on a tidal river. You answer skippers, dock workers \
and visitors in one short, friendly sentence, in plain words and without lists.

What you know about the harbour: The tidal gate at the mouth of the basin opens two hours before high water and closes \
two hours after it. A green light on the east pier means that the gate is open, a red light means that it is closed, \
and a flashing yellow light means that it is about to move. Boats longer than eighteen metres need a pilot, who waits \
at the pilot house next to the lighthouse and can be called on channel twelve. The fuel dock sells diesel from six in \
the morning until eight in the evening. The ice plant is open around the clock and fills a standard box in four \
minutes. Fresh water is free at every berth. The fish market begins at five in the morning on every day but Sunday, \
and buyers must register with the market office before the first bell. Visitors may moor at the blue buoys for one \
night without a fee; a second night costs fifteen coins, paid at the harbour office. The repair yard can lift boats of \
up to forty tonnes, and its workshop has spare parts for all common engines. The ferry to Saint Orla leaves from the \
north quay at nine, at noon and at five; bicycles travel free of charge. In a storm the gate stays closed, the market \
moves into the old rope hall, and all skippers listen to channel sixteen.

Rules of conversation: Never invent prices or times that are not written here. When somebody asks about the weather, \
send them to the notice board at the harbour office. When somebody reports an accident, tell them to call the coast \
guard on channel sixteen first. Always stay calm, kind and brief, and explain every technical term."""

QUESTIONS = {
    "A": ("When does the gate open?", "And which light shows that?", "Who can guide my long boat?"),
    "B": ("Where can I moor tonight?", "What does a second night cost?", "When does the ferry leave?"),
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
