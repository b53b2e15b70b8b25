"""Answer several prompts in one batch, in this process."""

from __future__ import annotations

from baton import LLM, SamplingParams

PROMPTS = [
    "What does os.path.join do?",
    "How do I sort a list?",
    "What is a generator?",
]


def main() -> None:
    """Load the model and print what it answers."""
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model="models/pydoc/checkpoint")
    for output in llm.generate(PROMPTS, sampling_params):
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
    llm.close()


if __name__ == "__main__":
    main()
