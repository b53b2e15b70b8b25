"""Train the model: `python -m models.pydoc.train`. Resumes from the last saved state, if any."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch

from models.pydoc.batches import TOKENS_PER_STEP, Batches
from models.pydoc.checkpoint import write_checkpoint
from models.pydoc.evaluate import report
from models.pydoc.facts.corpus import SEED, all_facts
from models.pydoc.network import build_network, build_optimizers, loss_of, rate_at, set_rates
from models.pydoc.prose import documents
from models.pydoc.tokenizer import train_tokenizer

NUM_STEPS = 2000
SAVE_EVERY = 200
LOG_EVERY = 20
MAX_NORM = 1.0

logger = logging.getLogger(__name__)


class Run:
    """One training run and its state on disk."""

    def __init__(self, num_steps: int, state_path: Path) -> None:
        self._num_steps = num_steps
        self._state_path = state_path
        self._facts = all_facts(SEED)
        texts = documents()
        self.tokenizer = train_tokenizer(self._facts, texts)
        self._batches = iter(Batches(self.tokenizer, self._facts, texts, SEED))
        self.network = build_network(SEED)
        self._optimizers = build_optimizers(self.network)

    def train(self, checkpoint: Path) -> None:
        first = self._load()
        started, average = time.monotonic(), 0.0
        for step in range(first, self._num_steps):
            loss = self._step(step)
            average = loss if step == first else 0.95 * average + 0.05 * loss
            done = step + 1
            if done % LOG_EVERY == 0:
                self._log(done, average, (done - first) / (time.monotonic() - started))
            if done % SAVE_EVERY == 0 or done == self._num_steps:
                self._save(done)
                write_checkpoint(self.network, self.tokenizer, checkpoint)
                report(self.network, self.tokenizer, self._facts)

    def _step(self, step: int) -> float:
        inputs, labels = next(self._batches)
        set_rates(self._optimizers, rate_at(step, self._num_steps))
        self.network.zero_grad()
        loss, _ = loss_of(self.network, inputs, labels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.item()

    def _log(self, done: int, average: float, steps_per_second: float) -> None:
        logger.info(
            "step %d of %d, loss %.3f, %.0f tokens/s, %.0f min left",
            done,
            self._num_steps,
            average,
            steps_per_second * TOKENS_PER_STEP,
            (self._num_steps - done) / steps_per_second / 60,
        )

    def _save(self, done: int) -> None:
        states = [optimizer.state_dict() for optimizer in self._optimizers]
        state = {"done": done, "network": self.network.state_dict(), "optimizers": states}
        partial = self._state_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._state_path)

    def _load(self) -> int:
        """How many steps are done already. Their batches are drawn again, to be passed over."""
        if not self._state_path.exists():
            return 0
        state = torch.load(self._state_path, weights_only=True)
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for _ in range(state["done"]):
            next(self._batches)
        return int(state["done"])


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", type=Path, default=here / "build")
    parser.add_argument("--checkpoint", type=Path, default=here / "checkpoint")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    options.build.mkdir(parents=True, exist_ok=True)
    Run(options.steps, options.build / "state.pt").train(options.checkpoint)


if __name__ == "__main__":
    main()
