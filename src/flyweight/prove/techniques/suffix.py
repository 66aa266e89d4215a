"""Suffix decoding: the likeliest continuation of the longest known suffix is verified in one step.

The prompt is that of prompt lookup, so both methods can be compared.
"""

from flyweight.prove.techniques.ngram import DRAFT, MANUAL

TECHNIQUE = MANUAL.make_technique(
    "suffix",
    "suffix decoding: the likeliest continuation of the longest known suffix is drafted",
    f"method suffix, num_speculative_tokens = {DRAFT}",
    {"method": "suffix", "num_speculative_tokens": DRAFT},
)
