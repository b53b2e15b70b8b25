"""What a request asks for and what an answer consists of, in every process."""
