"""Options of `flyweight run` that choose tokens, in the order in which they act, with their help.
Their ranges and defaults are `SamplingParams`'.
"""

from typing import Annotated

import typer

BadWords = Annotated[
    list[str] | None,
    typer.Option("--bad-words", metavar="TEXT", help="Never write this; may be repeated."),
]
Repetition = Annotated[
    float | None,
    typer.Option("--repetition-penalty", metavar="R", help="Above 1 discourages repeats."),
]
Presence = Annotated[
    float | None,
    typer.Option("--presence-penalty", metavar="P", help="Taken off what was written before."),
]
Frequency = Annotated[
    float | None,
    typer.Option("--frequency-penalty", metavar="P", help="The same, for each time it was."),
]
RepeatLast = Annotated[
    int | None,
    typer.Option(
        "--repeat-last-n", metavar="N", help="Tokens that penalties look at; -1 is all, 0 none."
    ),
]
DryMultiplier = Annotated[
    float | None,
    typer.Option(metavar="M", help="DRY: above 0 discourages going on with a repetition."),
]
DryBase = Annotated[
    float | None, typer.Option(metavar="B", help="DRY: how much more each token of it costs.")
]
DryAllowed = Annotated[
    int | None,
    typer.Option("--dry-allowed-length", metavar="N", help="DRY: repetitions this long are free."),
]
DryLast = Annotated[
    int | None,
    typer.Option("--dry-penalty-last-n", metavar="N", help="DRY: tokens to look back; -1 is all."),
]
DryBreaker = Annotated[
    list[str] | None,
    typer.Option(
        "--dry-sequence-breaker", metavar="TEXT", help="DRY: ends a repetition; may be repeated."
    ),
]
TopNSigma = Annotated[
    float | None,
    typer.Option(metavar="N", help="Keep what is within N standard deviations of the best."),
]
TopK = Annotated[int | None, typer.Option(metavar="N", help="Keep the N likeliest; 0 keeps all.")]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="0 is greedy. [default: the model's, or 0.8]")
]
TypicalP = Annotated[
    float | None,
    typer.Option(metavar="P", help="Keep what surprises as expected, up to this probability."),
]
TopP = Annotated[
    float | None,
    typer.Option(metavar="P", help="Keep the likeliest tokens up to this much probability."),
]
MinP = Annotated[
    float | None, typer.Option(metavar="P", help="Keep what is P times as likely as the best.")
]
XtcProbability = Annotated[
    float | None, typer.Option(metavar="P", help="XTC: how often the top choices are dropped.")
]
XtcThreshold = Annotated[
    float | None, typer.Option(metavar="P", help="XTC: how likely a top choice is at least.")
]
Mirostat = Annotated[
    int | None,
    typer.Option(metavar="0|1|2", help="Hold the surprise of the text; no cut beside it."),
]
MirostatTau = Annotated[
    float | None, typer.Option(metavar="BITS", help="Mirostat: how much of it.")
]
MirostatEta = Annotated[
    float | None, typer.Option(metavar="E", help="Mirostat: how fast it learns.")
]
