"""Ask two questions about one long document: the second one finds the document's KV."""

from __future__ import annotations

import time

from baton import LLM, SamplingParams

HEAD = "Here is a table of modules as Markdown.\n\n| id | module | of |\n|---|---|---|\n"
ROWS = [f"| {n} | module_{n} | part {n % 7} of the library |\n" for n in range(40)]
DOCUMENT = HEAD + "".join(ROWS)
QUESTIONS = ["Question: what is module 7 of?", "Question: what is module 30 of?"]


def main() -> None:
    """Print both answers, how long each took, and how much of each prompt was cached."""
    llm = LLM(model="models/pydoc/checkpoint", enable_prefix_caching=True)
    sampling_params = SamplingParams(temperature=0, max_tokens=20)
    for question in QUESTIONS:
        start = time.perf_counter()
        [output] = llm.generate(DOCUMENT + question, sampling_params=sampling_params)
        took = time.perf_counter() - start
        num_cached, num_tokens = output.num_cached_tokens, len(output.prompt_token_ids)
        print(f"Output: {output.outputs[0].text!r}")
        print(f"{took * 1e3:.0f} ms, {num_cached} of {num_tokens} prompt tokens were cached")
    llm.close()


if __name__ == "__main__":
    main()
