"""Options of `flyweight run` that choose tokens, in the order in which they act, with their help.
Their ranges and defaults are `SamplingParams`'.
"""

from typing import Annotated

import typer

BadWords = Annotated[
    list[str] | None,
    typer.Option("--bad-words", metavar="TEXT", help="Never write this text; may be repeated."),
]
Repetition = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty",
        metavar="R",
        help="Penalty for repeats; above 1 discourages them.  [default: the model's, or 1]",
    ),
]
Presence = Annotated[
    float | None,
    typer.Option(
        "--presence-penalty",
        metavar="P",
        help="Penalty for a token that was written.  [default: 0]",
    ),
]
Frequency = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty",
        metavar="P",
        help="Penalty for each time a token was written.  [default: 0]",
    ),
]
RepeatLast = Annotated[
    int | None,
    typer.Option(
        "--repeat-last-n",
        metavar="N",
        help="Tokens that penalties look back; -1 is all, 0 none.  [default: -1]",
    ),
]
DryMultiplier = Annotated[
    float | None,
    typer.Option(
        metavar="M", help="DRY: penalty for continuing a repetition; 0 is off.  [default: 0]"
    ),
]
DryBase = Annotated[
    float | None,
    typer.Option(metavar="B", help="DRY: growth of the penalty with each token.  [default: 1.75]"),
]
DryAllowed = Annotated[
    int | None,
    typer.Option(
        "--dry-allowed-length",
        metavar="N",
        help="DRY: longest repetition without a penalty.  [default: 2]",
    ),
]
DryLast = Annotated[
    int | None,
    typer.Option(
        "--dry-penalty-last-n",
        metavar="N",
        help="DRY: tokens to look back; -1 is all.  [default: -1]",
    ),
]
DryBreaker = Annotated[
    list[str] | None,
    typer.Option(
        "--dry-sequence-breaker",
        metavar="TEXT",
        help='DRY: text that ends a repetition; may be repeated.  [default: line end : " *]',
    ),
]
TopNSigma = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="Keep tokens within N standard deviations of the best; 0 keeps all.  [default: 0]",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Keep the N likeliest tokens; 0 keeps all.  [default: the model's, or 0]"
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="T", help="Randomness of the choice; 0 is greedy.  [default: the model's, or 0.8]"
    ),
]
TypicalP = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="Keep typical tokens up to this total probability.  [default: 1]"
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Keep the likeliest tokens up to this total probability.  "
        "[default: the model's, or 0.95]",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Keep tokens at least P times as likely as the best.  [default: the model's, or 0]",
    ),
]
XtcProbability = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="XTC: how often the likeliest tokens are dropped.  [default: 0]"
    ),
]
XtcThreshold = Annotated[
    float | None,
    typer.Option(metavar="P", help="XTC: least probability of a token to drop.  [default: 0.1]"),
]
Mirostat = Annotated[
    int | None, typer.Option(metavar="0|1|2", help="Mirostat's version; 0 is off.  [default: 0]")
]
MirostatTau = Annotated[
    float | None, typer.Option(metavar="BITS", help="Mirostat: surprise to aim at.  [default: 5]")
]
MirostatEta = Annotated[
    float | None, typer.Option(metavar="E", help="Mirostat: learning rate.  [default: 0.1]")
]
