"""The SDK, blocking: `pip install ./client`. Whole, as a stream, held to a choice."""

from __future__ import annotations

from baton_client import Baton


def main() -> None:
    """Ask three times."""
    with Baton("127.0.0.1:50051") as baton:
        answer = baton.chat("What does os.path.join do?", max_tokens=64)
        print(answer.text)
        print(
            f"{answer.usage.completion_tokens} tokens, the first after "
            f"{answer.timings.first_token_ms:.0f} ms; prompt computed by "
            f"{answer.timings.prefill_worker or answer.timings.decode_worker}"
        )

        with baton.stream_chat("What is a generator?", max_tokens=64) as stream:
            for piece in stream:
                print(piece.text, end="", flush=True)
        print()

        held = baton.chat("Is water wet?", structured_outputs={"choice": ["yes", "no"]})
        print(held.text)


if __name__ == "__main__":
    main()
