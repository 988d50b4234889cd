"""A baseline: repetition and collapse of a language model, measured the way the paper's script does it.

The speed of `mechplateau llm` is stated against this module, so it is an ordinary script's work: it needs torch and
transformers and nothing of ours. Following arXiv 2506.13688 (figure 8), for one prompt after the other:

1. eight times: run the whole text so far through the model, keep the last position's last hidden state, suppress
   end-of-text, append the most likely token;
2. a Python double loop over the pairs of the eight positions for the cosine similarity;
3. a Python loop over adjacent tokens for the repetition frequency.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn import functional as F


@torch.no_grad()
def collapse_and_repetition(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    n_tokens: int = 8,
    end_of_text: int | None = None,
) -> tuple[float, float]:
    """COS (mean over prompts, then over pairs i > j) and ρ of the tokens generated after each prompt.

    Args:
        model: a causal language model of transformers, in eval mode.
        prompts: token ids.
        n_tokens: tokens generated after each prompt.
        end_of_text: an id never generated.
    """
    cosines = torch.zeros(n_tokens, n_tokens)
    repeated, adjacent = 0, 0
    for prompt in prompts:
        text, states = list(prompt), []
        for _ in range(n_tokens):
            output = model(torch.tensor([text]), output_hidden_states=True, use_cache=False)
            states.append(output.hidden_states[-1][0, -1])
            logits = output.logits[0, -1]
            if end_of_text is not None:
                logits[end_of_text] = -float("inf")
            text.append(int(logits.argmax()))
        for i in range(n_tokens):
            for j in range(i):
                cosines[i, j] += F.cosine_similarity(states[i], states[j], dim=0) / len(prompts)
        new = text[len(prompt) :]
        for one, other in pairwise(new):
            repeated += one == other
            adjacent += 1
    pairs = [float(cosines[i, j]) for i in range(n_tokens) for j in range(i)]
    return sum(pairs) / len(pairs), repeated / adjacent
